// The model on the device beside what storage in bf16 costs: layer by layer from golden streams, and end to end.
#include "gpu/cuda_backend.h"
#include "tests/model/golden_case.h"
#include "tests/near.h"

using namespace golden;

namespace {

float to_bf16(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) return x;
  bits += 0x7FFFU + (bits >> 16 & 1U);
  return std::bit_cast<float>(bits & 0xFFFF0000U);
}

// Every intermediate that an observer sees is stored in bf16 on the host backend: its tensors are plain memory.
void round_in_place(tensor t) {
  if (t.type != dtype::f32) return;
  for (int64_t i = 0; i < t.n_elements(); ++i) t.f32()[i] = to_bf16(t.f32()[i]);
}

// The 99th percentile of row errors: largest difference of a row over the largest value of the tensor.
double row_error(std::span<const float> got, std::span<const float> want, size_t width) {
  REQUIRE(got.size() == want.size());
  float largest = 0;
  for (const float v : want) largest = std::max(largest, std::abs(v));
  std::vector<double> rows;
  for (size_t at = 0; at < got.size(); at += width) {
    float worst = 0;
    for (size_t i = at; i < at + width; ++i) {
      const float d = std::abs(got[i] - want[i]);
      worst = std::isnan(d) ? HUGE_VALF : std::max(worst, d);
    }
    rows.push_back(worst / largest);
  }
  std::sort(rows.begin(), rows.end());
  return rows[std::min(rows.size() - 1, rows.size() * 99 / 100)];
}

// Row errors of each layer's stream, each layer from the golden stream of the one before.
std::vector<double> layer_errors(backend& be, const case_folder& from, bool bf16) {
  expected_file want(from.source / "expected.safetensors");
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = want.ints("stream_rows").size(); // tiny-b lists the streams of all positions
  std::vector<double> errors;
  runner r(be, from, static_cast<int64_t>(n_prompt));
  r.of().observe(
      [&](std::string_view name, int32_t layer, tensor t) {
        if (bf16) round_in_place(t);
        const std::string golden = "layer" + std::to_string(layer) + "." + std::string(name);
        if ((name != "stream" && name != "hc_ffn_pre") || !want.has(golden)) return;
        const std::vector<float> v = want.floats(golden);
        std::vector<float> got(v.size());
        be.download(got.data(), t, t.size_bytes());
        if (name == "stream") errors.push_back(row_error(got, v, static_cast<size_t>(t.row_elements())));
        be.upload(t, v.data(), t.size_bytes());
      },
      static_cast<int64_t>(n_prompt));
  r.prefill(std::span(ids).first(n_prompt), n_prompt, false);
  return errors;
}

} // namespace

TEST_CASE("cuda model: rows of every layer are as near as bf16 storage on the host brings them, times 1.5") {
  const case_folder from(find_case("tiny-b"), "native");
  const auto device = make_cuda_backend({});
  const auto host = make_host_backend({.n_threads = 2});
  const auto got = layer_errors(*device, from, false), bf16 = layer_errors(*host, from, true);
  REQUIRE(got.size() == bf16.size());
  REQUIRE(!got.empty());
  for (size_t l = 0; l < got.size(); ++l) {
    MESSAGE("layer " << l << ", p99 of rows beside 1.5 x bf16 storage: max error " << got[l] << ", bound "
                     << 1.5 * bf16[l]);
    CHECK(got[l] <= 1.5 * bf16[l]);
  }
}

TEST_CASE("cuda model: logits are as near to the golden ones as the released arithmetic is, times 1.5") {
  const case_folder from(find_case("tiny-b"), "native");
  expected_file want(from.source / "expected.safetensors"), released(from.source / "released_arithmetic.safetensors");
  const std::vector<int32_t> ids = want.ints("ids"), rows = want.ints("rows");
  REQUIRE(released.ints("rows") == rows);
  const size_t n_prompt = want.ints("stream_rows").size();
  const auto device = make_cuda_backend({});
  runner r(*device, from, static_cast<int64_t>(n_prompt));
  const std::vector<float> all = r.prefill(std::span(ids).first(n_prompt), n_prompt);
  const auto v = static_cast<size_t>(r.of().settings().vocabulary);
  std::vector<float> got;
  for (const int32_t row : rows) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(row) * v);
    got.insert(got.end(), at, at + static_cast<std::ptrdiff_t>(v));
  }
  const auto golden = want.floats("logits");
  const double error = row_error(got, golden, v), bound = 1.5 * row_error(released.floats("logits"), golden, v);
  MESSAGE("logits, p99 of rows beside 1.5 x released arithmetic: max error " << error << ", bound " << bound);
  CHECK(error <= bound);
}
