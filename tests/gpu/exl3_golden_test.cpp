// golden/exl3 against the decoder: bit equality where the format is exact, the bounds of exl3.md section 16 for
// products.
#include "gpu/codebook.h"
#include "gpu/dequantise.h"
#include "gpu/formats.h"
#include "gpu/hadamard.h"
#include "gpu/linear.h"
#include "gpu/moe.h"
#include "gpu/trellis.h"
#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

namespace troupe::test {
namespace {

constexpr double exact_product = 2e-6; // relative RMS, exl3.md section 16

// Numbers that came with the data: golden.json at a JSON pointer.
double documented(const std::string& pointer) {
  static simdjson::dom::parser parser;
  static const simdjson::dom::element root = parser.load((golden_in_tree("exl3") / "golden.json").string());
  return static_cast<double>(root.at_pointer(pointer).get_double());
}

std::vector<std::string> case_files() {
  std::vector<std::string> names;
  for (const char* book : {"mul1", "mcg", "3inst"})
    for (const char* size : {"256x384", "128x512"})
      for (int k = 1; k <= 8; ++k)
        if (std::string(size) == "256x384" || std::string(book) == "mul1")
          names.push_back(fmt::format("{}_k{}_{}", book, k, size));
  return names;
}

stored_matrix to_stored(golden_file& g, const std::string& name) {
  stored_matrix m;
  m.how = stored_matrix::format::exl3;
  m.name = name;
  m.book = stored_matrix::codebook::inst3;
  for (auto book : {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg})
    if (g.has(troupe::name(book))) {
      m.book = book;
      check_codebook_marker(book, g.get(troupe::name(book)).i32()[0], name);
    }
  m.trellis = g.get("trellis");
  m.suh = g.get("suh");
  m.svh = g.get("svh");
  m.in = m.trellis.shape[0] * trellis_tile;
  m.out = m.trellis.shape[1] * trellis_tile;
  return m;
}

bool same_bits(const std::vector<float>& a, const tensor& half) {
  for (size_t i = 0; i < a.size(); ++i)
    if (f32_to_f16(a[i]) != half.as<uint16_t>()[i]) return false;
  return static_cast<int64_t>(a.size()) == half.n_elements();
}

// What a tensor of the reference's own kernels is off, against the figure that came with it.
void check_peer(golden_file& g, const std::string& name, const std::string& case_name) {
  if (!g.has(name)) return;
  const std::vector<float> peer = g.floats(name), exact = g.floats("y_exact");
  const double off = rms_error(peer, std::span(exact).first(peer.size()));
  CHECK(off == doctest::Approx(documented("/cases/" + case_name + "/rel_rms_vs_y_exact/" + name)).epsilon(0.05));
}

void check_products(golden_file& g, golden_file& source, const stored_matrix& m) {
  memory_account account{INT64_MAX, 0};
  stored_matrix with_bias = m;
  std::vector<float> bias = source.floats("bias");
  with_bias.bias = tensor(bias.data(), dtype::f32, {m.out});
  const host_matrix plain(m, account), biased(with_bias, account);
  std::vector<float> x = source.floats("x");
  const auto n_rows = static_cast<int64_t>(x.size()) / m.in;
  std::vector<float> y(static_cast<size_t>(n_rows * m.out)), y_biased = y;
  linear_host(tensor(y.data(), dtype::f32, {n_rows, m.out}), tensor(x.data(), dtype::f32, {n_rows, m.in}), plain);
  linear_host(tensor(y_biased.data(), dtype::f32, {n_rows, m.out}), tensor(x.data(), dtype::f32, {n_rows, m.in}),
              biased);
  std::vector<float> expected = g.floats("y_exact");
  CHECK(rms_error(y, expected) <= exact_product);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % static_cast<size_t>(m.out)];
  CHECK(rms_error(y_biased, expected) <= exact_product);
}

// The decoded weight is as far from the source weight as the quantiser reported, in the plain and in the Hessian norm.
void check_quantisation_errors(golden_file& source, const std::vector<float>& w, const stored_matrix& m) {
  const std::vector<float> original = source.floats("W"), hessian = source.floats("H_sum");
  CHECK(rms_error(w, original) == doctest::Approx(documented("/cases/" + m.name + "/weight_rel_err")).epsilon(1e-3));
  const int64_t k = m.in, n = m.out;
  const auto energy = [&](auto value) { // trace of v^T H v
    double total = 0;
    for (int64_t a = 0; a < k; ++a)
      for (int64_t b = 0; b < k; ++b) {
        double dot = 0;
        for (int64_t c = 0; c < n; ++c) dot += static_cast<double>(value(a * n + c)) * value(b * n + c);
        total += dot * hessian[a * k + b];
      }
    return total;
  };
  const double error = energy([&](int64_t i) { return w[i] - original[i]; });
  const double whole = energy([&](int64_t i) { return original[i]; });
  CHECK(error / whole < 1.3 * documented("/cases/" + m.name + "/proxy_err"));
}

void check_case(const std::string& name, golden_file& source) {
  INFO(name);
  golden_file g(*find_golden("exl3", name + ".safetensors"));
  const stored_matrix m = to_stored(g, name);
  CHECK_NOTHROW(check_trellis(m));
  CHECK(same_bits(decode_trellis(m), g.get("w_inner")));
  if (g.has("states")) {
    const tensor expected = g.get("states");
    const int64_t n_words = m.trellis.shape[2];
    std::array<uint16_t, 256> states;
    for (int64_t tile = 0; tile < expected.n_elements() / 256; ++tile) {
      trellis_states({m.trellis.as<uint16_t>() + tile * n_words, static_cast<size_t>(n_words)}, states);
      CHECK(std::equal(states.begin(), states.end(), expected.as<uint16_t>() + tile * 256));
    }
  }
  const std::vector<float> w = decode_exl3(m);
  if (g.has("w_full"))
    CHECK(relative_error(g.floats("w_full"), w) ==
          doctest::Approx(documented("/cases/" + name + "/w_full_vs_exact_max_over_absmax")).epsilon(0.05));
  tensor x = source.get("x");
  std::vector<uint16_t> xh(static_cast<size_t>(x.n_elements()));
  hadamard_host(tensor(xh.data(), dtype::f16, {x.shape[0], x.shape[1]}), x, m.suh, {});
  CHECK(std::equal(xh.begin(), xh.end(), g.get("xh").as<uint16_t>()));
  check_products(g, source, m);
  check_quantisation_errors(source, w, m);
  for (const char* peer :
       {"y_gemm_f32", "y_gemm_f16", "y_recon_f32", "y_gemv_f32", "y_int8_m1", "y_int8_m2", "y_int8res_m1"})
    check_peer(g, peer, name);
  CHECK(g.unused() == std::vector<std::string>{});
}

void run_cases(bool in_tree) {
  int n_run = 0, n_absent = 0;
  for (const char* size : {"256x384", "128x512"}) {
    golden_file source(*find_golden("exl3", std::string("source_") + size + ".safetensors"));
    for (const std::string& name : case_files()) {
      const bool in = std::filesystem::exists(golden_in_tree("exl3") / (name + ".safetensors"));
      if (name.find(size) == std::string::npos || in != in_tree) continue;
      if (find_golden("exl3", name + ".safetensors")) {
        check_case(name, source);
        ++n_run;
      } else
        ++n_absent;
    }
    if (in_tree) CHECK(source.unused() == std::vector<std::string>{});
  }
  const std::string report =
      fmt::format("golden/exl3 matrices {} the tree: {} ran, {} absent", in_tree ? "in" : "beside", n_run, n_absent);
  MESSAGE(report);
}

TEST_CASE("codebook: all states of the three codebooks equal golden/exl3 bit for bit") {
  golden_file g(golden_in_tree("exl3") / "codebooks.safetensors");
  for (auto book : {stored_matrix::codebook::inst3, stored_matrix::codebook::mcg, stored_matrix::codebook::mul1}) {
    const tensor expected = g.get(name(book));
    int n_wrong = 0;
    for (uint32_t s = 0; s < 65536; ++s) {
      n_wrong += codebook_value(book, static_cast<uint16_t>(s)) != expected.as<uint16_t>()[s] ? 1 : 0;
      n_wrong += codebook_table(book)[s] != f16_to_f32(expected.as<uint16_t>()[s]) ? 1 : 0;
    }
    CHECK(n_wrong == 0);
  }
  CHECK(g.unused() == std::vector<std::string>{});
}

TEST_CASE("hadamard: the f16 and f32 forms equal golden/exl3 bit for bit") {
  golden_file g(golden_in_tree("exl3") / "hadamard.safetensors");
  const tensor x = g.get("x"), scale = g.get("scale");
  std::vector<float> x32 = g.floats("x"), y32(x32.size());
  std::vector<uint16_t> y16(x32.size());
  const tensor in32(x32.data(), dtype::f32, {4, 384}), out32(y32.data(), dtype::f32, {4, 384});
  const tensor out16(y16.data(), dtype::f16, {4, 384});
  const auto same = [&](const std::string& form, const tensor& pre, const tensor& post) {
    INFO(form);
    hadamard_host(out16, x, pre, post);
    CHECK(std::equal(y16.begin(), y16.end(), g.get("f16_" + form).as<uint16_t>()));
    hadamard_host(out32, in32, pre, post);
    CHECK(std::equal(y32.begin(), y32.end(), g.get("f32_" + form).f32()));
  };
  same("plain", {}, {});
  same("pre", scale, {});
  same("post", {}, scale);
  CHECK(g.unused() == std::vector<std::string>{});
}

TEST_CASE("trellis: states packed by the rule of exl3.md 4.2 come back, for all rates and codebooks of golden/exl3") {
  golden_file g(golden_in_tree("exl3") / "tiles.safetensors");
  const std::vector<float> input = g.floats("input");
  for (auto book : {stored_matrix::codebook::inst3, stored_matrix::codebook::mcg, stored_matrix::codebook::mul1})
    for (int k = 1; k <= 8; ++k) {
      const std::string key = fmt::format("{}_k{}", name(book), k);
      INFO(key);
      const tensor expected = g.get("states_" + key);
      const double scale = documented("/tiles/" + key + "/scale");
      double off = 0, total = 0;
      for (int tile = 0; tile < 32; ++tile) {
        const uint16_t* s = expected.as<uint16_t>() + tile * 256;
        std::vector<uint16_t> words(static_cast<size_t>(16 * k));
        for (int t = 0; t < 256; ++t)
          for (int b = 0; b < k; ++b) { // the low K bits of a state are its own, most significant first
            const int at = t * k + b;
            if ((s[t] >> (k - 1 - b)) & 1) words[(at / 16) ^ 1] |= static_cast<uint16_t>(0x8000 >> at % 16);
          }
        std::array<uint16_t, 256> states;
        trellis_states(words, states);
        CHECK(std::equal(states.begin(), states.end(), s));
        for (int t = 0; t < 256; ++t) {
          const double v = input[static_cast<size_t>(tile * 256 + t)];
          const double d = codebook_table(book)[s[t]] / scale - v;
          off += d * d;
          total += v * v;
        }
      }
      CHECK(off / total == doctest::Approx(documented("/tiles/" + key + "/mse_over_var")).epsilon(0.02));
    }
  CHECK(g.unused() == std::vector<std::string>{});
}

TEST_CASE("trellis: half rates decode to the states and weights of golden/exl3") {
  golden_file g(golden_in_tree("exl3") / "halfrate.safetensors");
  for (const char* rate : {"k1p5", "k2p5", "k3p5"}) {
    INFO(std::string(rate));
    stored_matrix m;
    m.trellis = g.get(std::string("trellis_") + rate);
    const tensor expected = g.get(std::string("states_") + rate);
    const int64_t n_words = m.trellis.shape[2];
    std::array<uint16_t, 256> states;
    for (int64_t tile = 0; tile < expected.n_elements() / 256; ++tile) {
      trellis_states({m.trellis.as<uint16_t>() + tile * n_words, static_cast<size_t>(n_words)}, states);
      CHECK(std::equal(states.begin(), states.end(), expected.as<uint16_t>() + tile * 256));
    }
    CHECK(same_bits(decode_trellis(m), g.get(std::string("w_inner_") + rate)));
  }
  CHECK(g.unused() == std::vector<std::string>{});
}

TEST_CASE("exl3: the matrices of golden/exl3 in the tree decode bit for bit and multiply within 2e-6") {
  run_cases(true);
}

TEST_CASE("exl3: the matrices of golden/exl3 beside the tree decode bit for bit and multiply within 2e-6" *
          doctest::test_suite("slow")) {
  run_cases(false);
}

// The reference's kernel clamps silu(g), the model clamps g: so the case tests decoding and products, with its own
// rule.
TEST_CASE("exl3: eight experts of golden/exl3 give the reference's mixture") {
  golden_file g(golden_in_tree("exl3") / "moe_mul1_k3_e8.safetensors");
  memory_account account{INT64_MAX, 0};
  std::map<std::string, std::vector<std::unique_ptr<host_matrix>>> experts;
  for (const std::string part : {"gate", "up", "down"})
    for (int64_t e = 0; e < 8; ++e) {
      stored_matrix m;
      m.how = stored_matrix::format::exl3;
      m.name = part;
      m.in = m.out = 256;
      m.trellis = g.get(part + "_trellis").slice(e, 1).reshape({16, 16, 48});
      m.suh = g.get(part + "_suh").slice(e, 1).reshape({256});
      m.svh = g.get(part + "_svh").slice(e, 1).reshape({256});
      experts[part].push_back(std::make_unique<host_matrix>(m, account));
    }
  const std::vector<float> x = g.floats("x"), weights = g.floats("weights");
  std::vector<float> y(12 * 256), gate(256), up(256), out(256);
  for (size_t r = 0; r < 12; ++r)
    for (size_t slot = 0; slot < 2; ++slot) {
      const auto e = static_cast<size_t>(g.get("selected").i64()[r * 2 + slot]);
      linear_row(gate.data(), x.data() + r * 256, *experts["gate"][e]);
      linear_row(up.data(), x.data() + r * 256, *experts["up"][e]);
      for (size_t i = 0; i < 256; ++i)
        gate[i] = std::min(gate[i] / (1 + std::exp(-gate[i])), 10.0F) * std::clamp(up[i], -10.0F, 10.0F);
      linear_row(out.data(), gate.data(), *experts["down"][e]);
      for (size_t i = 0; i < 256; ++i) y[r * 256 + i] += weights[r * 2 + slot] * out[i];
    }
  CHECK(rms_error(y, g.floats("y_exact")) <= exact_product);
  CHECK(rms_error(g.floats("y_fused_f32"), g.floats("y_exact")) ==
        doctest::Approx(documented("/moe/rel_rms_fused_vs_exact")).epsilon(0.05));
  CHECK(g.unused() == std::vector<std::string>{});
}

} // namespace
} // namespace troupe::test
