// What the EXL3 loader refuses, and how it says so.
#include "gpu/codebook.h"
#include "gpu/dequantise.h"
#include "gpu/formats.h"
#include "gpu/trellis.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <string>

namespace troupe {
namespace {

struct exl3_case {
  std::vector<uint16_t> words, suh, svh;
  stored_matrix m;

  exl3_case(int64_t in, int64_t out, int64_t n_words)
      : words(static_cast<size_t>(in / 16 * (out / 16) * n_words)), suh(static_cast<size_t>(in), 0x3C00),
        svh(static_cast<size_t>(out), 0x3C00) {
    m.how = stored_matrix::format::exl3;
    m.name = "layers.0.w1";
    m.in = in;
    m.out = out;
    m.trellis = tensor(words.data(), dtype::i16, {in / 16, out / 16, n_words});
    m.suh = tensor(suh.data(), dtype::f16, {in});
    m.svh = tensor(svh.data(), dtype::f16, {out});
  }
};

std::string refusal(const stored_matrix& m) {
  try {
    dequantise(m);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "accepted";
}

TEST_CASE("trellis: a matrix of whole blocks is accepted at every integer rate, and at half rates with mul1 only") {
  for (int64_t n_words : {16, 32, 48, 64, 80, 96, 112, 128, 24, 40, 56}) {
    exl3_case c(128, 256, n_words);
    CHECK(refusal(c.m) == "accepted");
  }
  exl3_case c(128, 128, 24);
  c.m.book = stored_matrix::codebook::mcg;
  CHECK(says(refusal(c.m), "24 words a tile with codebook mcg"));
}

TEST_CASE("trellis: an unknown rate is refused by name") {
  for (int64_t n_words : {8, 17, 72, 144}) {
    exl3_case c(128, 128, n_words);
    CHECK(says(refusal(c.m), "layers.0.w1: trellis has " + std::to_string(n_words) + " words"));
  }
}

TEST_CASE("trellis: widths that are no multiples of 128 are refused by name") {
  exl3_case narrow(64, 128, 48), short_one(128, 144, 48);
  CHECK(says(refusal(narrow.m), "trellis is 64 x 128, expected multiples of 128"));
  CHECK(says(refusal(short_one.m), "trellis is 128 x 144, expected multiples of 128"));
}

TEST_CASE("trellis: a width other than the model's is refused") {
  exl3_case c(128, 128, 48);
  c.m.out = 256;
  CHECK(says(refusal(c.m), "trellis is 128 x 128 (in x out), expected 128 x 256"));
}

TEST_CASE("trellis: scale vectors of a wrong length or type, or with a value that is not finite, are refused") {
  exl3_case c(128, 128, 48);
  c.m.suh = tensor(c.suh.data(), dtype::f16, {64});
  CHECK(says(refusal(c.m), "suh is expected as (128) F16, found (64) F16"));
  c.m.suh = {};
  CHECK(says(refusal(c.m), "suh is expected as (128) F16"));
  exl3_case bad(128, 128, 48);
  bad.svh[77] = 0x7E00;
  CHECK(says(refusal(bad.m), "svh[77] is not a finite number"));
}

TEST_CASE("codebook: a marker with another multiplier is refused") {
  CHECK_NOTHROW(check_codebook_marker(stored_matrix::codebook::mul1, -2082680531, "m"));
  CHECK_NOTHROW(check_codebook_marker(stored_matrix::codebook::mcg, -877912083, "m"));
  CHECK_THROWS_WITH(check_codebook_marker(stored_matrix::codebook::mul1, 7, "layers.0.w1"),
                    "layers.0.w1.mul1: codebook multiplier is 0x00000007, expected 0x83dcd12d");
  CHECK_THROWS(check_codebook_marker(stored_matrix::codebook::inst3, 7, "m"));
}

TEST_CASE("dequantise: missing and misshapen tensors are refused by name") {
  std::vector<uint8_t> bytes(64 * 64);
  stored_matrix m;
  m.name = "layers.3.attn.wkv";
  m.how = stored_matrix::format::fp8_block;
  m.out = m.in = 64;
  m.weight = tensor(bytes.data(), dtype::f8_e4m3, {64, 64});
  CHECK(says(refusal(m), "layers.3.attn.wkv.scale is expected as (2, 2) F8_E8M0, found (0, 0) nothing"));
  m.scale = tensor(bytes.data(), dtype::f8_e8m0, {2, 2});
  CHECK(refusal(m) == "accepted");
  m.how = stored_matrix::format::fp8_row;
  CHECK(says(refusal(m), "layers.3.attn.wkv.scale is expected as (64, 2) F8_E8M0, found (2, 2) F8_E8M0"));
  m.how = stored_matrix::format::dense;
  CHECK(says(refusal(m), "layers.3.attn.wkv.weight is expected as (64, 64) BF16, found (64, 64) F8_E4M3"));
  m.bias = tensor(bytes.data(), dtype::f32, {63});
  CHECK(says(refusal(m), "layers.3.attn.wkv.bias is expected as (64) F32, found (63) F32"));
}

} // namespace
} // namespace troupe
