// Butterflies in the order that the format fixes, so that results are the same bits everywhere.
#include "gpu/hadamard.h"

#include "gpu/formats.h"

namespace troupe {
namespace {

// Over 128 items of `n` values each, one item after another.
template <class T> void butterfly(T* v, int n) {
  for (int width = 1; width < hadamard_block; width *= 2)
    for (int i = 0; i < hadamard_block; i += 2 * width)
      for (int j = i * n; j < (i + width) * n; ++j) {
        const T a = v[j], b = v[j + width * n];
        v[j] = a + b;
        v[j + width * n] = a - b;
      }
}

float element(const tensor& t, int64_t i) {
  return t.type == dtype::f16 ? f16_to_f32(t.as<uint16_t>()[i]) : t.f32()[i];
}

} // namespace

void hadamard_host(tensor y, tensor x, tensor pre, tensor post) {
  const int64_t n = x.shape[x.rank - 1];
  TROUPE_CHECK(n % hadamard_block == 0, "a Hadamard transform works on whole blocks of 128");
  const bool half = x.type == dtype::f16;
  const auto round = [half](float v) { return half ? round_to_f16(v) : v; };
  const int64_t n_elements = x.n_elements();
  for (int64_t first = 0; first < n_elements; first += hadamard_block) {
    const int64_t column = first % n;
    float v[hadamard_block];
    for (int i = 0; i < hadamard_block; ++i) {
      v[i] = element(x, first + i);
      if (pre) v[i] = round(v[i] * element(pre, column + i));
    }
    butterfly(v, 1);
    for (int i = 0; i < hadamard_block; ++i) {
      float out = round(v[i] * hadamard_scale);
      if (post) out = round(out * element(post, column + i));
      if (half)
        y.as<uint16_t>()[first + i] = f32_to_f16(out);
      else
        y.f32()[first + i] = out;
    }
  }
}

void hadamard_both_sides(double* block) {
  for (int r = 0; r < hadamard_block; ++r) butterfly(block + r * hadamard_block, 1);
  butterfly(block, hadamard_block);
}

} // namespace troupe
