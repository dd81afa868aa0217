// Linears of every stored form on the device against the host's, and what a row may not depend on.
#include "gpu/formats.h"
#include "tests/cuda/linear_cases.h"
#include "tests/cuda/twins.h"

#include <fmt/format.h>

using namespace troupe;
using namespace troupe::test;

namespace {

// Relative RMS that exl3.md section 16 allows for two-term int8 and for f16 operands.
constexpr double packed_bound = 1e-3;
constexpr double plain_bound = 2e-6;

void compare(twins& t, const stored_sample& w, int64_t rows, double bound) {
  const auto host = t.host->load(w.m), device = t.device->load(w.m);
  const twin_tensor x = t.floats({rows, w.m.in}, 7), y = t.output({rows, w.m.out});
  t.host->linear(y.host, x.host, *host);
  t.device->linear(y.device, x.device, *device);
  t.near_rms(fmt::format("linear {}, {} rows", w.m.name, rows).c_str(), y, bound);
  // Row by row: the bits it has among others.
  const std::vector<float> together = t.read_device(y);
  const twin_tensor one = t.output({1, w.m.out});
  for (int64_t r = 0; r < rows; r += 3) {
    t.device->linear(one.device, x.device.slice(r, 1), *device);
    const std::vector<float> alone = t.read_device(one);
    CHECK_MESSAGE(std::memcmp(alone.data(), together.data() + r * w.m.out, alone.size() * 4) == 0,
                  w.m.name << " row " << r << " of " << rows);
  }
}

} // namespace

TEST_CASE("cuda linear: every rate and codebook of EXL3 is within the bound of its format") {
  twins t;
  for (const auto book : {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg, stored_matrix::codebook::inst3})
    for (int rate = 2; rate <= 16; ++rate) {
      if (rate % 2 != 0 && (book != stored_matrix::codebook::mul1 || rate > 7)) continue;
      const stored_sample w = trellis_sample(book, rate, 384, 256, 11U + static_cast<unsigned>(rate));
      for (const int64_t rows : {1, 4, 5, 19}) compare(t, w, rows, packed_bound);
    }
}

TEST_CASE("cuda linear: EXL3 with padded widths, many slices and a bias") {
  twins t;
  stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 1408, 640, 3);
  w.m.in = 1330;
  w.m.out = 601;
  w.bias = random_floats(601, 9);
  w.m.bias = tensor(w.bias.data(), dtype::f32, {601});
  for (const int64_t rows : {1, 8, 33}) compare(t, w, rows, packed_bound);
}

TEST_CASE("cuda linear: unpacked formats equal the host's up to the order of sums") {
  twins t;
  for (const stored_sample& w : plain_samples(300, 224))
    for (const int64_t rows : {1, 8, 19, 64, 77}) compare(t, w, rows, plain_bound); // from 56 on in tiles
  for (const stored_sample& w : plain_samples(29, 2080))                            // four slices of inputs
    for (const int64_t rows : {1, 5, 701}) compare(t, w, rows, plain_bound);
}

TEST_CASE("cuda linear: an unpacked matrix with a bias, and one whose rows lie at odd places") {
  twins t;
  std::vector<stored_sample> all = plain_samples(48, 608);
  const std::vector<float> bias = random_floats(48, 9);
  for (stored_sample& w : all) {
    w.bias = bias;
    w.m.bias = tensor(w.bias.data(), dtype::f32, {48});
    for (const int64_t rows : {3, 400}) compare(t, w, rows, plain_bound);
  }
  stored_sample odd = std::move(all[0]); // no multiple of four
  odd.m.in = 605;
  odd.m.weight = tensor(odd.floats.data(), dtype::f32, {48, 605});
  for (const int64_t rows : {1, 400}) compare(t, odd, rows, plain_bound);
}

TEST_CASE("cuda linear: small scratch works in slabs and gives the same bits") {
  twins large, small(24 << 20);
  slabs_give_the_same_bits(large, small, trellis_sample(stored_matrix::codebook::mul1, 8, 768, 1024, 5), 77);
}

TEST_CASE("cuda linear: a value that is no number stays in its row") {
  twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 1);
  const auto m = t.device->load(w.m);
  std::vector<float> values = random_floats(4 * 256, 1);
  values[2 * 256 + 17] = NAN;
  values[3 * 256 + 200] = INFINITY;
  const twin_tensor x = t.make(dtype::f32, {4, 256}, values), y = t.output({4, 128});
  t.device->linear(y.device, x.device, *m);
  const std::vector<float> got = t.read_device(y);
  for (int64_t i = 0; i < 4 * 128; ++i) CHECK(std::isfinite(got[static_cast<size_t>(i)]) == (i < 2 * 128));
}

TEST_CASE("cuda linear: groups of one row lie side by side") {
  twins t;
  groups_lie_side_by_side(t, "linear_grouped", 9, packed_bound);
}

TEST_CASE("cuda memory: what does not fit is refused by name and leaves everything as it was") {
  auto b = make_cuda_backend({.memory_bytes = 128 << 20, .scratch_bytes = 16 << 20}); // twice, and counters
  const int64_t before = b->allocated_bytes();
  CHECK_THROWS_WITH_AS(b->allocate(dtype::f32, {1 << 24}, "window rings"), doctest::Contains("window rings"),
                       std::system_error);
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 16, 8192, 4096, 1);
  CHECK_THROWS_WITH_AS(b->load(w.m), doctest::Contains(w.m.name.c_str()), std::system_error);
  CHECK(b->allocated_bytes() == before);
  {
    const stored_sample fits = trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 1);
    const auto m = b->load(fits.m);
    CHECK(b->allocated_bytes() > before);
  }
  CHECK(b->allocated_bytes() == before);
}
