// Warp-group products of Hopper (sm_90a) with f32 sums: of f16, B from shared memory, A from registers (Spec: exl3.md
// 13.6) or from there too; of bf16 with A from registers.
#pragma once

#include "gpu/async_copy.cuh"

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TROUPE_WGMMA 1
#endif

namespace troupe::wgmma {

#if defined(TROUPE_WGMMA)

// Before the first product and after every write to registers that products read.
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most Pending groups are not done.
template <int Pending> __device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// B as rows of 64 f16 (128 bytes), eight rows an atom of 1024 bytes, atoms one after another, the 16-byte piece c of
// row r at place c ^ (r & 7): the 128-byte swizzle. The low word of its descriptor; sixteen columns further on: + 2.
// The high word is always the same: 1024 bytes from atom to atom, swizzle 128.
__device__ __forceinline__ uint32_t descriptor(const void* b) { return (shared_address(b) & 0x3FFFF) >> 4 | 1U << 16; }

#define TROUPE_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TROUPE_D16(i) TROUPE_D4(i), TROUPE_D4((i) + 4), TROUPE_D4((i) + 8), TROUPE_D4((i) + 12)
#define TROUPE_D32(i) TROUPE_D16(i), TROUPE_D16((i) + 16)
#define TROUPE_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TROUPE_R16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TROUPE_R32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TROUPE_R48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TROUPE_R64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TROUPE_R48_8 "%48, %49, %50, %51, %52, %53, %54, %55"
#define TROUPE_R56_4 "%56, %57, %58, %59"
#define TROUPE_R64_4 "%64, %65, %66, %67"
#define TROUPE_R68_4 "%68, %69, %70, %71"
#define TROUPE_R80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TROUPE_TO_64 TROUPE_R0 ", " TROUPE_R16 ", " TROUPE_R32 ", " TROUPE_R48
#define TROUPE_R96                                                                                                     \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                       \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define TROUPE_PRODUCT_OF(type, n, sums, weights, low)                                                                 \
  "{\n.reg .b64 b;\nmov.b64 b, {" low ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type   \
  " {" sums "}, {" weights "}, b, 1, 1, 1, 0;\n}\n"
#define TROUPE_PRODUCT(n, sums, weights, low) TROUPE_PRODUCT_OF("f16", n, sums, weights, low)

// d (64 x N, N / 2 floats a thread) += a (64 x 16) b (16 x N). Of lane l of warp w: row 16 w + l / 4 in d[4 j], d[4 j +
// 1] and the row 8 below in d[4 j + 2], d[4 j + 3], columns 8 j + 2 (l % 4) and the next. a as in mma.m16n8k16.
template <int N> struct rows {};
__device__ __forceinline__ void multiply(rows<32>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("32", TROUPE_R0, "%16, %17, %18, %19", "%20")
               : TROUPE_D16(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<64>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("64", TROUPE_R0 ", " TROUPE_R16, "%32, %33, %34, %35", "%36")
               : TROUPE_D32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<96>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("96", TROUPE_R0 ", " TROUPE_R16 ", " TROUPE_R32, "%48, %49, %50, %51", "%52")
               : TROUPE_D32(0), TROUPE_D16(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<112>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      TROUPE_PRODUCT("112", TROUPE_R0 ", " TROUPE_R16 ", " TROUPE_R32 ", " TROUPE_R48_8, "%56, %57, %58, %59", "%60")
      : TROUPE_D32(0), TROUPE_D16(32), TROUPE_D4(48), TROUPE_D4(52)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<120>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("120", TROUPE_R0 ", " TROUPE_R16 ", " TROUPE_R32 ", " TROUPE_R48_8 ", " TROUPE_R56_4,
                              "%60, %61, %62, %63", "%64")
               : TROUPE_D32(0), TROUPE_D16(32), TROUPE_D4(48), TROUPE_D4(52), TROUPE_D4(56)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<128>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("128", TROUPE_TO_64, "%64, %65, %66, %67", "%68")
               : TROUPE_D32(0), TROUPE_D32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<136>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("136", TROUPE_TO_64 ", " TROUPE_R64_4, "%68, %69, %70, %71", "%72")
               : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D4(64)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<144>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("144", TROUPE_TO_64 ", " TROUPE_R64_4 ", " TROUPE_R68_4, "%72, %73, %74, %75", "%76")
               : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D4(64), TROUPE_D4(68)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<160>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("160", TROUPE_TO_64 ", " TROUPE_R64, "%80, %81, %82, %83", "%84")
               : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D16(64)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<192>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("192", TROUPE_TO_64 ", " TROUPE_R64 ", " TROUPE_R80, "%96, %97, %98, %99", "%100")
               : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D32(64)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
__device__ __forceinline__ void multiply(rows<256>, float* d, const uint32_t (&a)[4], uint32_t b) {
  asm volatile(TROUPE_PRODUCT("256", TROUPE_TO_64 ", " TROUPE_R64 ", " TROUPE_R80 ", " TROUPE_R96,
                              "%128, %129, %130, %131", "%132")
               : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D32(64), TROUPE_D32(96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// d (64 x 192) += a (64 x 16) b (16 x 192), of bf16.
__device__ __forceinline__ void multiply_bf16(float (&d)[96], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      TROUPE_PRODUCT_OF("bf16", "192", TROUPE_TO_64 ", " TROUPE_R64 ", " TROUPE_R80, "%96, %97, %98, %99", "%100")
      : TROUPE_D32(0), TROUPE_D32(32), TROUPE_D32(64)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// A as B in shared memory: rows of the 128-byte swizzle, by `descriptor`. A B whose rows are the sixteen of the depth,
// by `turned_descriptor`: 64 columns of each, eight rows an atom, then the next eight rows; the next 64 columns
// `step_bytes` further on; sixteen rows further on: + 128.
__device__ __forceinline__ uint32_t turned_descriptor(const void* b, uint32_t step_bytes) {
  return (shared_address(b) & 0x3FFFF) >> 4 | step_bytes >> 4 << 16;
}
// Sums in registers may be read after this, or written before the next product: the compiler moves neither across.
template <int N> __device__ __forceinline__ void settle(float (&d)[N]) {
  static_assert(N % 32 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 32) asm volatile("" : TROUPE_D32(i)::"memory");
}

#define TROUPE_SHARED_PRODUCT(n, sums, a, b, keep, turned)                                                             \
  "{\n.reg .b64 a, b;\n.reg .pred keep;\nmov.b64 a, {" a ", 0x40000040};\nmov.b64 b, {" b                              \
  ", 0x40000040};\nsetp.ne.b32 keep, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" sums       \
  "}, a, b, keep, 1, 1, 0, " turned ";\n}\n"

// d (64 x 64) = a (64 x 16) b (16 x 64), plus d where `keep`. b in rows of its columns.
__device__ __forceinline__ void multiply_shared(float (&d)[32], uint32_t a, uint32_t b, bool keep) {
  asm volatile(TROUPE_SHARED_PRODUCT("64", TROUPE_R0 ", " TROUPE_R16, "%32", "%33", "%34", "0")
               : TROUPE_D32(0)
               : "r"(a), "r"(b), "r"(static_cast<int>(keep)));
}
// d (64 x 128) += a (64 x 16) b (16 x 128). b turned.
__device__ __forceinline__ void multiply_turned(float (&d)[64], uint32_t a, uint32_t b) {
  asm volatile(TROUPE_SHARED_PRODUCT("128", TROUPE_TO_64, "%64", "%65", "%66", "1")
               : TROUPE_D32(0), TROUPE_D32(32)
               : "r"(a), "r"(b), "r"(1));
}
#undef TROUPE_SHARED_PRODUCT

// The same with a from registers, as above.
__device__ __forceinline__ void multiply_turned(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
  asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%68, 0x40000040};\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" TROUPE_TO_64
               "}, {%64, %65, %66, %67}, b, 1, 1, 1, 1;\n}\n"
               : TROUPE_D32(0), TROUPE_D32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

#undef TROUPE_PRODUCT
#undef TROUPE_PRODUCT_OF
#undef TROUPE_D4
#undef TROUPE_D16
#undef TROUPE_D32
#undef TROUPE_R0
#undef TROUPE_R16
#undef TROUPE_R32
#undef TROUPE_R48
#undef TROUPE_R64
#undef TROUPE_R48_8
#undef TROUPE_R56_4
#undef TROUPE_R64_4
#undef TROUPE_R68_4
#undef TROUPE_R80
#undef TROUPE_R96
#undef TROUPE_TO_64

#endif

} // namespace troupe::wgmma
