// Known stored weights of every format, made from a random generator of a fixed seed, for the self-check; and how far
// results are apart.
#pragma once

#include "gpu/backend.h"

#include <random>
#include <vector>

namespace troupe {

struct weight_variant;

float known_float(std::mt19937&, float spread); // uniform, within two spreads
std::vector<float> known_floats(std::mt19937&, int64_t n, float spread);

// max |a - b| / max |b|; with `rms` the root of the sums of squares instead. Infinity where one is not a number.
double error_of(const std::vector<float>& a, const std::vector<float>& b, bool rms);

// A stored linear of a variant's format and the memory its tensors lie in. EXL3 widths are multiples of 128, others of
// 32. May be moved, not copied.
class known_matrix {
public:
  known_matrix(const weight_variant&, int64_t in, int64_t out, int32_t rate, std::mt19937&);
  known_matrix(known_matrix&&) = default;
  known_matrix(const known_matrix&) = delete;
  stored_matrix stored;

private:
  std::vector<uint16_t> words_, suh_, svh_;
  std::vector<uint8_t> bytes_, scales_;
  std::vector<float> floats_;
};

} // namespace troupe
