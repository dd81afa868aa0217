// Products of the prefill class on the device against the host's, and what a row may not depend on inside the class.
#include "tests/cuda/linear_cases.h"
#include "tests/cuda/twins.h"

#include <fmt/format.h>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr double packed_bound = 1e-3; // exl3.md section 16: f16 operands
constexpr double plain_bound = 1e-5;  // plain_gemm.h

// Products of `rows` rows on both sides; then one row, and runs of rows that use the smaller tile, have the same bits.
void compare(twins& t, const stored_sample& w, int64_t rows, bool few = true, double bound = packed_bound) {
  const auto host = t.host->load(w.m), device = t.device->load(w.m);
  const twin_tensor x = t.floats({rows, w.m.in}, 7), y = t.output({rows, w.m.out});
  t.host->linear(y.host, x.host, *host);
  t.device->linear(y.device, x.device, *device);
  t.near_rms(fmt::format("gemm {} {} rows", w.m.name, rows).c_str(), y, bound);
  const std::vector<float> together = t.read_device(y);
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{64}, int64_t{100}}) {
    if (n > rows || (few && n > 1)) continue;
    const twin_tensor some = t.output({n, w.m.out});
    for (int64_t r = 0; r + n <= rows; r += few ? 29 : 61) {
      t.device->linear(some.device, x.device.slice(r, n), *device);
      const std::vector<float> got = t.read_device(some);
      CHECK_MESSAGE(std::memcmp(got.data(), together.data() + r * w.m.out, got.size() * 4) == 0,
                    w.m.name << " rows " << r << " + " << n << " of " << rows);
    }
  }
}

struct prefill_twins : twins {
  explicit prefill_twins(int64_t scratch_bytes = 64 << 20) : twins(scratch_bytes) {
    device->set_row_classes(all_prefill);
  }
};

} // namespace

TEST_CASE("cuda gemm: every rate and codebook of EXL3 is within the bound of f16 operands") {
  prefill_twins t;
  for (const auto book : {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg, stored_matrix::codebook::inst3})
    for (int rate = 2; rate <= 16; ++rate) {
      if (rate % 2 != 0 && (book != stored_matrix::codebook::mul1 || rate > 7)) continue;
      const stored_sample w = trellis_sample(book, rate, 384, 256, 11U + static_cast<unsigned>(rate));
      for (const int64_t rows : {1, 17, 65}) compare(t, w, rows);
    }
}

TEST_CASE("cuda gemm: rows have the same bits alone, among a few and among many") {
  prefill_twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 1280, 384, 5);
  for (const int64_t rows : {8, 64, 65, 130, 300, 513}) compare(t, w, rows, false);
}

// Tiles of 32, 64, 96, 128, 160, 192 and 256 rows; the last is taken for many items only, which the host would need
// minutes for.
TEST_CASE("cuda gemm: every size of tile gives the same bits") {
  prefill_twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 512, 128 * 70, 8);
  const auto m = t.device->load(w.m);
  const int64_t most = 4096;
  const twin_tensor x = t.floats({most, w.m.in}, 7), y = t.output({most, w.m.out}), some = t.output({most, w.m.out});
  t.device->linear(y.device, x.device, *m);
  const std::vector<float> together = t.read_device(y);
  for (const int64_t rows : {3, 50, 90, 110, 118, 128, 134, 142, 150, 180, 1300, 4000}) {
    const int64_t first = most - rows;
    t.device->linear(some.device.slice(0, rows), x.device.slice(first, rows), *m);
    const std::vector<float> got = t.read_device(some);
    CHECK_MESSAGE(std::memcmp(got.data(), together.data() + first * w.m.out,
                              static_cast<size_t>(rows * w.m.out) * sizeof(float)) == 0,
                  rows << " rows");
  }
}

TEST_CASE("cuda gemm: padded widths, many chunks, many items a block and a bias") {
  prefill_twins t;
  stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 1408, 640, 3);
  w.m.in = 1330;
  w.m.out = 601;
  w.bias = random_floats(601, 9);
  w.m.bias = tensor(w.bias.data(), dtype::f32, {601});
  for (const int64_t rows : {1, 17, 130, 300}) compare(t, w, rows);
  const stored_sample wide = trellis_sample(stored_matrix::codebook::mul1, 5, 256, 128 * 70, 4);
  compare(t, wide, 1300);
}

TEST_CASE("cuda gemm: unpacked formats are near the host's, alone and among others") {
  prefill_twins t;
  for (const stored_sample& w : plain_samples(300, 224)) compare(t, w, 130, false, plain_bound);
  for (stored_sample& w : plain_samples(29, 2080)) { // five slices of inputs
    w.bias = random_floats(29, 9);
    w.m.bias = tensor(w.bias.data(), dtype::f32, {29});
    for (const int64_t rows : {1, 5, 77}) compare(t, w, rows, true, plain_bound);
  }
  stored_sample odd = std::move(plain_samples(48, 608)[1]); // bf16, no multiple of four
  odd.m.in = 605;
  odd.m.weight = tensor(odd.words.data(), dtype::bf16, {48, 605});
  for (const int64_t rows : {1, 40}) compare(t, odd, rows, true, plain_bound);
}

// 4096 rows fill the device with large tiles, the others go slice by slice.
TEST_CASE("cuda gemm: unpacked formats give the same bits in both sizes of tile, and without scratch") {
  prefill_twins t, small(1 << 20);
  for (const stored_sample& w : plain_samples(300, 1088)) {
    const auto m = t.device->load(w.m), of_small = small.device->load(w.m);
    const int64_t most = 4096;
    const twin_tensor x = t.floats({most, w.m.in}, 7), y = t.output({most, w.m.out}), some = t.output({most, w.m.out});
    t.device->linear(y.device, x.device, *m);
    const std::vector<float> together = t.read_device(y);
    for (const int64_t rows : {1, 3, 50, 300}) {
      const int64_t first = most - rows;
      t.device->linear(some.device.slice(0, rows), x.device.slice(first, rows), *m);
      const std::vector<float> got = t.read_device(some);
      CHECK_MESSAGE(std::memcmp(got.data(), together.data() + first * w.m.out,
                                static_cast<size_t>(rows * w.m.out) * sizeof(float)) == 0,
                    w.m.name << ", " << rows << " rows");
    }
    const twin_tensor x_small = small.floats({300, w.m.in}, 7), y_small = small.output({300, w.m.out});
    small.device->linear(y_small.device, x_small.device, *of_small);
    const std::vector<float> got = small.read_device(y_small);
    CHECK_MESSAGE(std::memcmp(got.data(), together.data(), got.size() * sizeof(float)) == 0, w.m.name);
  }
}

TEST_CASE("cuda gemm: small scratch works in slabs and gives the same bits") {
  prefill_twins large, small(1 << 20);
  slabs_give_the_same_bits(large, small, trellis_sample(stored_matrix::codebook::mcg, 8, 768, 1024, 5), 1377);
}

TEST_CASE("cuda gemm: a value that is no number stays in its row, tiny and huge rows keep their precision") {
  prefill_twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 1);
  const auto host = t.host->load(w.m), m = t.device->load(w.m);
  std::vector<float> values = random_floats(6 * 256, 1);
  for (int64_t i = 0; i < 256; ++i) {
    values[static_cast<size_t>(i)] *= 1e-30F;
    values[static_cast<size_t>(256 + i)] *= 1e30F;
  }
  values[4 * 256 + 17] = NAN;
  values[5 * 256 + 200] = INFINITY;
  const twin_tensor x = t.make(dtype::f32, {6, 256}, values), y = t.output({6, 128});
  t.host->linear(y.host, x.host, *host);
  t.device->linear(y.device, x.device, *m);
  const std::vector<float> got = t.read_device(y);
  for (int64_t i = 0; i < 6 * 128; ++i) CHECK(std::isfinite(got[static_cast<size_t>(i)]) == (i < 4 * 128));
  for (int64_t r = 0; r < 4; ++r) t.near_rms("gemm row of any size", y.slice(r, 1), packed_bound);
}

TEST_CASE("cuda gemm: groups of one row lie side by side") {
  prefill_twins t;
  groups_lie_side_by_side(t, "gemm linear_grouped", 70, packed_bound);
}
