// Number formats: round trips over all codes, ties, the golden encodings and the three quantisers.
#include "gpu/dequantise.h"
#include "gpu/engram_rows.h"
#include "gpu/formats.h"
#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace troupe::test {
namespace {

TEST_CASE("formats: every finite code of every format comes back from its value") {
  for (uint32_t c = 0; c < 65536; ++c) {
    const auto bits = static_cast<uint16_t>(c);
    if (std::isfinite(f16_to_f32(bits))) CHECK_UNARY(f32_to_f16(f16_to_f32(bits)) == bits);
    if (std::isfinite(bf16_to_f32(bits))) CHECK_UNARY(f32_to_bf16(bf16_to_f32(bits)) == bits);
  }
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    if (!std::isnan(e4m3_to_f32(code))) CHECK(f32_to_e4m3(e4m3_to_f32(code)) == code);
  }
  for (uint8_t c = 0; c < 16; ++c) CHECK(f32_to_e2m1(e2m1_to_f32(c)) == c);
}

TEST_CASE("formats: values between two codes go to the nearer one, ties to the even one") {
  for (uint32_t c = 0; c < 0x7BFF; ++c) {
    const float low = f16_to_f32(static_cast<uint16_t>(c)), high = f16_to_f32(static_cast<uint16_t>(c + 1));
    const float middle = low + (high - low) / 2;
    CHECK_UNARY(f32_to_f16(middle) == c + (c & 1));
    CHECK_UNARY(f32_to_f16(std::nextafterf(middle, 1e9F)) == c + 1);
    CHECK_UNARY(f32_to_f16(std::nextafterf(middle, 0)) == c);
  }
  for (int c = 0; c < 0x7E; ++c) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(c)), high = e4m3_to_f32(static_cast<uint8_t>(c + 1));
    const float middle = low + (high - low) / 2;
    CHECK(f32_to_e4m3(middle) == c + (c & 1));
    CHECK(f32_to_e4m3(std::nextafterf(middle, 1e9F)) == c + 1);
    CHECK(f32_to_e4m3(-std::nextafterf(middle, 0)) == (c | 0x80));
  }
  const float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
  const float rounded[] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) CHECK(e2m1_to_f32(f32_to_e2m1(ties[i])) == rounded[i]);
}

TEST_CASE("formats: edges saturate, overflow or stay NaN as each format says") {
  CHECK(f32_to_f16(65520) == 0x7C00);
  CHECK(f32_to_f16(65519) == 0x7BFF);
  CHECK(std::isnan(f16_to_f32(f32_to_f16(NAN))));
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
  CHECK(e4m3_to_f32(f32_to_e4m3(1e9F)) == 448);
  CHECK(std::isnan(e4m3_to_f32(0x7F)));
  CHECK(std::isnan(e4m3_to_f32(0xFF)));
  CHECK(std::isnan(e8m0_to_f32(255)));
  CHECK(e8m0_to_f32(0) == std::ldexp(1.0F, -127));
  CHECK(e5m2_to_f32(0x3C) == 1);
  CHECK(round_up_to_power_of_two(1) == 1);
  CHECK(round_up_to_power_of_two(std::nextafterf(1, 2)) == 2);
  CHECK(round_up_to_power_of_two(0.75F) == 1);
}

TEST_CASE("formats: a row with a value that is not finite comes out of the quantisers as NaN") {
  for (quantiser how : {quantiser::fp8_32, quantiser::fp4_e8m0_32, quantiser::fp4_e4m3_16}) {
    std::vector<float> x(32, 1.0F);
    x[5] = INFINITY;
    quantise_host(tensor(x.data(), dtype::f32, {1, 32}), how);
    CHECK(std::isnan(x[0]));
    CHECK(std::isnan(x[5]));
  }
}

TEST_CASE("formats: golden/model/units/formats, every encoding and quantiser, bit for bit") {
  const auto path = golden_in_tree("model/units") / "formats.safetensors";
  golden_file g(path);
  for (const auto& [how, key] : {std::pair{quantiser::fp8_32, "fp8_group32"},
                                 {quantiser::fp4_e8m0_32, "fp4_e8m0_group32"},
                                 {quantiser::fp4_e4m3_16, "fp4_e4m3_group16"}}) {
    INFO(std::string(key));
    std::vector<float> x = g.floats("x");
    quantise_host(tensor(x.data(), dtype::f32, {28, 128}), how);
    const std::vector<float> expected = g.floats(key);
    CHECK(x == expected);
  }
  const auto check_matrix = [&](stored_matrix::format how, const char* weight, const char* scale,
                                const char* expected) {
    INFO(std::string(weight));
    stored_matrix m;
    m.how = how;
    m.name = weight;
    m.out = 80;
    m.in = 96;
    m.weight = g.get(weight);
    m.scale = g.get(scale);
    CHECK(dequantise(m) == g.floats(expected));
  };
  check_matrix(stored_matrix::format::fp8_block, "block_weight", "block_scale", "block_dequant");
  check_matrix(stored_matrix::format::fp4, "fp4_weight", "fp4_scale", "fp4_dequant");
  check_matrix(stored_matrix::format::fp8_row, "rows_weight", "rows_scale", "rows_dequant");
  // block_w is what was encoded: each code is the nearest one at the block's scale.
  const std::vector<float> w = g.floats("block_w");
  const std::vector<float> scale = g.floats("block_scale");
  int n_wrong = 0;
  for (size_t r = 0; r < 80; ++r)
    for (size_t c = 0; c < 96; ++c)
      n_wrong +=
          f32_to_e4m3(w[r * 96 + c] / scale[r / 32 * 3 + c / 32]) != g.get("block_weight").as<uint8_t>()[r * 96 + c];
  CHECK(n_wrong == 0);
  const tensor codes = g.get("mxint4_weight"), scales = g.get("mxint4_scale");
  std::vector<uint8_t> records;
  for (int64_t r = 0; r < 24; ++r) {
    records.insert(records.end(), codes.as<uint8_t>() + r * 128, codes.as<uint8_t>() + (r + 1) * 128);
    records.insert(records.end(), scales.as<uint8_t>() + r * 8, scales.as<uint8_t>() + (r + 1) * 8);
  }
  std::vector<float> y(24 * 256);
  dequant_rows_host(tensor(y.data(), dtype::f32, {24, 1, 256}), tensor(records.data(), dtype::u8, {24, 1, 136}),
                    engram_format::mxint4, 256);
  CHECK(y == g.floats("mxint4_dequant"));
  CHECK(g.unused() == std::vector<std::string>{});
}

} // namespace
} // namespace troupe::test
