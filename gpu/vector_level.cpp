// Asks Highway what the processor supports.
#include "gpu/vector_level.h"

#include <hwy/targets.h>

namespace troupe {

const char* name(vector_level level) {
  switch (level) {
  case vector_level::scalar: return "scalar";
  case vector_level::avx2: return "avx2";
  case vector_level::avx512: return "avx512";
  }
  return "unknown";
}

std::vector<vector_level> supported_vector_levels() {
  std::vector<vector_level> levels = {vector_level::scalar};
#if HWY_ARCH_X86
  const int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX2) != 0) levels.push_back(vector_level::avx2);
  if ((targets & HWY_AVX3) != 0) levels.push_back(vector_level::avx512);
#endif
  return levels;
}

} // namespace troupe
