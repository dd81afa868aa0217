// Included before hwy/foreach_target.h by every file of vector kernels: they are built for AVX2 and AVX-512 only. Older
// targets of Highway have no fused multiply-add, so the scalar twins serve there.
#pragma once

#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
// Whether the target being compiled is one of the two; the baseline that Highway always builds as well is not.
#define TROUPE_VECTOR_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
