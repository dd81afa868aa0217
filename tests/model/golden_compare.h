// Comparison of what a run saw with a golden file of expected tensors.
#pragma once

#include "tests/model/golden_case.h"
#include "tests/near.h"

namespace golden {

// How near a run has to be (golden README, "How to compare").
struct bounds {
  double strict = 0;                          // > 0: every element within this, every set equal
  double rows = 2e-3, share = 0.95;           // else: this share of the rows within `rows`,
  double rms = 5e-3;                          // and the whole tensor within `rms`
  double inner_share = 0.8, inner_rms = 2e-2; // the same for tensors inside a layer: of 18 rows some hold a rounding
                                              // that fell the other way, and what a layer adds is small beside its
                                              // stream
  double draft_share = 0.8;                   // the same for the five rows of a draft block
};
inline constexpr bounds exact_bounds{.strict = 1e-4};
inline constexpr bounds rounded_bounds{};
// Two ranks add in another order, so other values fall on the other side of a rounding. All rows of a draft block read
// the same context rows: one that rounded the other way moves every row, and only the rms bound can tell that from a
// bug (without cache rounding the two ranks hold exact_bounds).
inline constexpr bounds rounded_two_rank_bounds{.inner_share = 0.75, .draft_share = 0};
// A layer alone, from golden streams: nothing has piled up.
inline constexpr bounds isolated_bounds{.share = 0.99, .rms = 2e-3, .inner_share = 0.94, .inner_rms = 2e-3};

// Compares what a run saw with an expected file; rows of a golden tensor are picked by position.
class comparison {
public:
  comparison(expected_file& want, const capture& got, const config& c, bounds b)
      : want_(want), got_(got), c_(c), b_(b) {}

  void near(const std::string& name, std::span<const float> got) {
    const std::vector<float> want = want_.floats(name);
    INFO(name);
    REQUIRE(got.size() == want.size());
    const size_t width =
        static_cast<size_t>(want.size()) / static_cast<size_t>(std::max<int64_t>(want_.shape(name)[0], 1));
    if (b_.strict > 0) {
      CHECK(test::relative_error(got, want) <= b_.strict);
      return;
    }
    const bool outer = is_outer(name);
    const double inner = name.starts_with("draft0.") ? b_.draft_share : b_.inner_share;
    CHECK(test::rows_within(got, want, width, b_.rows) >= (outer ? b_.share : inner));
    CHECK(test::rms_error(got, want) < (outer ? b_.rms : b_.inner_rms));
  }
  const captured_tensor& seen(const std::string& name, int32_t layer) const {
    const auto at = got_.find({layer, name});
    REQUIRE_MESSAGE(at != got_.end(), name);
    return at->second;
  }
  std::vector<float> rows(const std::string& name, int32_t layer, std::span<const int32_t> positions) const {
    const captured_tensor& t = seen(name, layer);
    std::vector<float> v;
    for (const int32_t p : positions) v.insert(v.end(), t.row(p).begin(), t.row(p).end());
    return v;
  }
  void rows_near(const std::string& name, const std::string& seen_name, int32_t layer,
                 std::span<const int32_t> positions) {
    if (want_.has(name)) near(name, rows(seen_name, layer, positions));
  }
  // Lists of numbers, -1 for none, compared as sets row by row.
  void sets_equal(const std::string& name, std::span<const float> got, int64_t got_width) {
    if (!want_.has(name)) return;
    const std::vector<int32_t> want = want_.ints(name);
    const int64_t n = want_.shape(name)[0], width = want_.shape(name)[1];
    int64_t equal = 0;
    for (int64_t r = 0; r < n; ++r) {
      std::set<int32_t> a, b;
      for (int64_t i = 0; i < got_width; ++i)
        a.insert(static_cast<int32_t>(got[static_cast<size_t>(r * got_width + i)]));
      for (int64_t i = 0; i < width; ++i) b.insert(want[static_cast<size_t>(r * width + i)]);
      a.erase(-1);
      b.erase(-1);
      equal += a == b ? 1 : 0;
    }
    INFO(name);
    if (b_.strict > 0)
      CHECK(equal == n);
    else
      CHECK(static_cast<double>(equal) >= b_.share * static_cast<double>(n));
  }
  void layer(int32_t l, std::span<const int32_t> positions, std::span<const int32_t> stream_positions);

private:
  // What leaves a layer or the model.
  static bool is_outer(const std::string& name) {
    for (const char* part : {"stream", "hc_ffn_pre", "engram_out", "logits", "final_fold", "main_hidden"})
      if (name.find(part) != std::string::npos) return true;
    return false;
  }
  void selection(int32_t l, const std::string& p, std::span<const int32_t> positions);
  void experts(int32_t l, const std::string& p);

  expected_file& want_;
  const capture& got_;
  const config& c_;
  bounds b_;
};

inline void comparison::layer(int32_t l, std::span<const int32_t> positions,
                              std::span<const int32_t> stream_positions) {
  const std::string p = "layer" + std::to_string(l) + ".";
  for (const char* name : {"engram_gate", "attn_in", "attn_out", "moe_out", "hc_attn_pre", "hc_attn_post",
                           "hc_attn_comb", "stream_mid", "ffn_in", "qr", "q", "attn_o", "kv", "index_q", "index_w"})
    rows_near(p + name, name, l, positions);
  for (const char* name : {"engram_out", "stream", "hc_ffn_pre"}) rows_near(p + name, name, l, stream_positions);
  if (want_.has(p + "groups")) {
    const int32_t ratio = static_cast<int32_t>(c_.role(l).ratio);
    std::vector<int32_t> ends = want_.ints(p + "groups"), some;
    for (int32_t& e : ends) e = e * ratio + ratio - 1;
    rows_near(p + "comp", "comp", l, ends);
    rows_near(p + "index_k", "index_k", l, ends);
    const auto stride = ends.size() / static_cast<size_t>(want_.shape(p + "latent")[0]) >= 7 ? size_t{8} : size_t{1};
    for (size_t i = 0; i < ends.size(); i += stride) some.push_back(ends[i]);
    rows_near(p + "latent", "latent", l, some);
  }
  selection(l, p, positions);
  experts(l, p);
}

inline void comparison::selection(int32_t l, const std::string& p, std::span<const int32_t> positions) {
  if (want_.has(p + "index_topk")) {
    const captured_tensor& t = seen("index_topk", l);
    sets_equal(p + "index_topk", t.values, t.width);
  }
  if (want_.has(p + "index_score")) {
    const int64_t n = want_.shape(p + "index_score")[1];
    std::vector<float> got;
    for (const int32_t r : positions) {
      const auto row = seen("index_score", l).row(r).first(static_cast<size_t>(n));
      got.insert(got.end(), row.begin(), row.end());
    }
    near(p + "index_score", got);
  }
  if (!want_.has(p + "candidates")) return;
  const int64_t n = want_.shape(p + "candidates")[1], size = c_.candidate_block_size;
  std::vector<float> mask(positions.size() * static_cast<size_t>(n));
  for (size_t r = 0; r < positions.size(); ++r)
    for (const float block : seen("candidates", l).row(positions[r])) {
      const int64_t first = static_cast<int64_t>(block) * size;
      for (int64_t e = first; block >= 0 && e < std::min(first + size, n); ++e)
        mask[r * static_cast<size_t>(n) + static_cast<size_t>(e)] = 1;
    }
  near(p + "candidates", mask);
}

inline void comparison::experts(int32_t l, const std::string& p) {
  if (!want_.has(p + "moe_ids")) return;
  const captured_tensor& ids = seen("moe_ids", l);
  sets_equal(p + "moe_ids", ids.values, ids.width);
  if (!want_.has(p + "moe_w")) return;
  const captured_tensor& weights = seen("moe_w", l);
  // Weights in ascending order of their experts, on both sides.
  const auto by_id = [&](std::span<const float> id, std::span<const float> w) {
    std::vector<float> sorted;
    const size_t k = static_cast<size_t>(ids.width);
    for (size_t r = 0; r < id.size() / k; ++r) {
      std::map<float, float> row;
      for (size_t i = 0; i < k; ++i) row[id[r * k + i]] = w[r * k + i];
      for (const auto& [e, v] : row) sorted.push_back(v);
    }
    return sorted;
  };
  const std::vector<float> want = by_id(want_.floats(p + "moe_ids"), want_.floats(p + "moe_w"));
  const std::vector<float> got =
      by_id(std::span(ids.values).first(want.size()), std::span(weights.values).first(want.size()));
  INFO(p);
  REQUIRE(got.size() == want.size());
  if (b_.strict > 0)
    CHECK(test::relative_error(got, want) <= b_.strict);
  else
    CHECK(test::rows_within(got, want, static_cast<size_t>(ids.width), b_.rows) >= b_.share);
}

} // namespace golden
