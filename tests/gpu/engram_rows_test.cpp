// Engram rows in all stored forms against golden data, and the gate against f64.
#include "gpu/engram_rows.h"
#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <random>

namespace troupe::test {
namespace {

std::vector<uint8_t> join(const tensor& codes, const tensor& scales) {
  std::vector<uint8_t> records;
  for (int64_t r = 0; r < codes.shape[0]; ++r) {
    const tensor c = codes.slice(r, 1), s = scales.slice(r, 1);
    records.insert(records.end(), c.as<uint8_t>(), c.as<uint8_t>() + c.size_bytes());
    records.insert(records.end(), s.as<uint8_t>(), s.as<uint8_t>() + s.size_bytes());
  }
  return records;
}

TEST_CASE("engram_rows: FP8, MXINT-4 and MXINT-3 rows equal golden/exl3 bit for bit") {
  golden_file g(golden_in_tree("exl3") / "engram_rows.safetensors");
  const auto check = [&](const tensor& codes, const tensor& scales, engram_format format, const std::string& expected) {
    INFO(expected);
    std::vector<uint8_t> records = join(codes, scales);
    const int64_t n_bytes = codes.shape[1] + scales.shape[1];
    CHECK(n_bytes == engram_record_bytes(format, 256, 256 / scales.shape[1]));
    std::vector<float> y(64 * 256);
    dequant_rows_host(tensor(y.data(), dtype::f32, {64, 1, 256}), tensor(records.data(), dtype::u8, {64, 1, n_bytes}),
                      format, 256);
    CHECK(y == g.floats(expected));
  };
  check(g.get("fp8_rows"), g.get("fp8_scale_ue8m0"), engram_format::fp8, "dequant_f32");
  check(g.get("fp8_rows"), g.get("fp8_scale_ue8m0"), engram_format::fp8, "dequant_bf16");
  for (int bits : {4, 3})
    for (int block : {32, 16}) {
      const std::string key = fmt::format("mxint{}_b{}", bits, block);
      check(g.get(key + "_codes"), g.get(key + "_scale_e4m3"),
            bits == 4 ? engram_format::mxint4 : engram_format::mxint3, key + "_dequant_bf16");
    }
  CHECK(g.unused() == std::vector<std::string>{});
}

TEST_CASE("engram_rows: a NaN code poisons its value, a NaN scale its block") {
  std::vector<uint8_t> record(64 + 2, 0x38); // 64 codes of 1.0
  record[64] = record[65] = 127;             // 2^0
  record[3] = 0x7F;
  record[65] = 255;
  std::vector<float> y(64);
  dequant_rows_host(tensor(y.data(), dtype::f32, {1, 1, 64}), tensor(record.data(), dtype::u8, {1, 1, 66}),
                    engram_format::fp8, 64);
  CHECK(y[2] == 1);
  CHECK(std::isnan(y[3]));
  for (int i = 32; i < 64; ++i) CHECK(std::isnan(y[static_cast<size_t>(i)]));
}

TEST_CASE("engram_rows: the gate equals the formula in f64, dead rows stay as they are") {
  constexpr int64_t rows = 3, copies = 4, dim = 80;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](int64_t n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(random);
    return v;
  };
  std::vector<float> h = values(rows * copies * dim), kv = values(rows * (copies + 1) * dim);
  std::vector<float> qw = values(copies * dim), kw = values(copies * dim), gates(rows * copies);
  const std::vector<float> before = h;
  std::vector<int32_t> dead = {0, 1, 0};
  engram_gate_host(tensor(h.data(), dtype::f32, {rows, copies, dim}),
                   tensor(kv.data(), dtype::f32, {rows, copies + 1, dim}), tensor(qw.data(), dtype::f32, {copies, dim}),
                   tensor(kw.data(), dtype::f32, {copies, dim}), tensor(dead.data(), dtype::i32, {rows}),
                   tensor(gates.data(), dtype::f32, {rows, copies}), 1e-20F);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t m = 0; m < copies; ++m) {
      const float* key = kv.data() + (r * (copies + 1) + m) * dim;
      const float* x = before.data() + (r * copies + m) * dim;
      double dot = 0, xx = 0, kk = 0;
      for (int64_t i = 0; i < dim; ++i) {
        dot += static_cast<double>(x[i]) * qw[m * dim + i] * kw[m * dim + i] * key[i];
        xx += static_cast<double>(x[i]) * x[i];
        kk += static_cast<double>(key[i]) * key[i];
      }
      dot /= std::sqrt(xx / dim) * std::sqrt(kk / dim) * std::sqrt(static_cast<double>(dim));
      const double root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot);
      const double gate = dead[r] != 0 ? 0 : 1 / (1 + std::exp(-root));
      CHECK(gates[r * copies + m] == doctest::Approx(gate).epsilon(1e-5));
      for (int64_t i = 0; i < dim; ++i) {
        const double expected = x[i] + gate * kv[(r * (copies + 1) + copies) * dim + i];
        CHECK(std::fabs(h[(r * copies + m) * dim + i] - expected) < 1e-5);
      }
    }
}

} // namespace
} // namespace troupe::test
