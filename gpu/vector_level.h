// Which vector form of the host kernels runs. All of them give the bits of the scalar twins.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

enum class vector_level : uint8_t { scalar, avx2, avx512 };

const char* name(vector_level);

// What this processor and operating system can run, lowest first; scalar always. The last one is the one to use.
std::vector<vector_level> supported_vector_levels();

} // namespace troupe
