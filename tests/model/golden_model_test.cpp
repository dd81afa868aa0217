// The model against its golden cases: every listed intermediate, chunk sizes, decode, drafts, tail, one rank and two.
#include "tests/model/golden_case.h"
#include "tests/near.h"

using namespace golden;

namespace {

struct bounds {
  double strict = 0; // > 0: every element within this; 0: rows_within(loose_rows, 0.95) and rms
  double loose_rows = 2e-3, rms = 5e-3, share = 0.95;
};
constexpr bounds exact_bounds{.strict = 1e-4};
constexpr bounds rounded_bounds{};

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
    CHECK(test::rows_within(got, want, width, b_.loose_rows) >= b_.share);
    CHECK(test::rms_error(got, want) < b_.rms);
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
  void selection(int32_t l, const std::string& p, std::span<const int32_t> positions);
  void experts(int32_t l, const std::string& p);

  expected_file& want_;
  const capture& got_;
  const config& c_;
  bounds b_;
};

void comparison::layer(int32_t l, std::span<const int32_t> positions, std::span<const int32_t> stream_positions) {
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

void comparison::selection(int32_t l, const std::string& p, std::span<const int32_t> positions) {
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

void comparison::experts(int32_t l, const std::string& p) {
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
    CHECK(test::rows_within(got, want, static_cast<size_t>(ids.width), b_.loose_rows) >= b_.share);
}

// Everything one case can show on one rank, in the order of the file.
struct case_run {
  std::vector<float> prompt_logits, decode_logits;
  std::vector<draft_result> drafts;
  capture prompt, decode, first_draft;
};

std::vector<int32_t> argmax_rows(std::span<const float> logits, size_t vocabulary) {
  std::vector<int32_t> ids;
  for (size_t r = 0; r * vocabulary < logits.size(); ++r)
    ids.push_back(best(logits.subspan(r * vocabulary, vocabulary)));
  return ids;
}

case_run run_case(backend& be, const case_folder& from, std::span<const int32_t> ids, size_t n_prompt, size_t chunk,
                  bool round_caches, bool look) {
  case_run run;
  runner r(be, from, static_cast<int64_t>(ids.size()));
  r.of().round_caches(round_caches);
  if (look) r.of().observe(capture_into(run.prompt), static_cast<int64_t>(ids.size()));
  run.prompt_logits = r.prefill(ids.first(n_prompt), chunk);
  const auto vocabulary = static_cast<size_t>(r.of().settings().vocabulary);
  for (size_t at = n_prompt; at < ids.size(); ++at) {
    if (look) r.of().observe(capture_into(run.decode), static_cast<int64_t>(ids.size()));
    const std::vector<float> logits = r.step(ids.subspan(at, 1), static_cast<int64_t>(at), 1);
    run.decode_logits.insert(run.decode_logits.end(), logits.begin(), logits.end());
    if (look && at == n_prompt)
      r.of().observe(capture_into(run.first_draft), static_cast<int64_t>(ids.size()));
    else
      r.of().observe(nullptr, 0);
    const auto position = static_cast<int64_t>(at) + 1;
    const draft_anchor anchor{.slot = runner::slot, .position = position, .token = argmax_rows(logits, vocabulary)[0]};
    run.drafts.push_back(r.of().draft({&anchor, 1}));
    r.of().observe(nullptr, 0);
  }
  return run;
}

void compare_drafts(expected_file& want, comparison& with, const case_run& run, const config& c) {
  const size_t per_step = static_cast<size_t>(c.draft.block) * static_cast<size_t>(c.vocabulary);
  const std::vector<int32_t> tokens = want.ints("draft.tokens");
  std::vector<int32_t> got_tokens;
  std::vector<float> confidence, logits;
  for (size_t i = 0; i < run.drafts.size(); ++i) {
    const draft_result& d = run.drafts[i];
    got_tokens.insert(got_tokens.end(), d.tokens.begin(), d.tokens.end());
    confidence.insert(confidence.end(), d.confidence.begin(), d.confidence.end());
    if (static_cast<int64_t>(i) < want.shape("draft.logits")[0])
      logits.insert(logits.end(), d.logits.begin(), d.logits.end());
  }
  CHECK(per_step * static_cast<size_t>(want.shape("draft.logits")[0]) == logits.size());
  CHECK(got_tokens == tokens);
  with.near("draft.confidence", confidence);
  with.near("draft.logits", logits);
}

void compare_first_draft(expected_file& want, comparison& with, const config& c) {
  if (!want.has("draft0.hidden")) return;
  with.near("draft0.hidden", with.seen("draft_hidden", -1).values);
  with.near("draft0.base_logits", with.seen("draft_base_logits", -1).values);
  for (int32_t s = 0; s < c.draft.stages; ++s) {
    const std::string p = "draft0.stage" + std::to_string(s) + ".";
    for (const char* name : {"stream", "attn_out", "moe_out", "hc_ffn_pre", "kv"})
      if (want.has(p + name)) with.near(p + name, with.seen(name, c.layers + s).values);
    const captured_tensor& ids = with.seen("moe_ids", c.layers + s);
    with.sets_equal(p + "moe_ids", ids.values, ids.width);
  }
}

void compare_case(expected_file& want, const case_folder& from, const case_run& run, bounds b) {
  const config c = read_config(from.folder);
  const std::vector<int32_t> rows = want.ints("rows"), stream_rows = want.ints("stream_rows");
  const auto v = static_cast<size_t>(c.vocabulary);
  comparison with(want, run.prompt, c, b);
  with.rows_near("embed_rows", "embed", -1, rows);
  for (int32_t l = 0; l < c.layers; ++l) with.layer(l, rows, stream_rows);
  with.rows_near("final_fold", "final_fold", -1, rows);
  with.rows_near("main_hidden", "main_hidden", -1, rows);
  for (int32_t s = 0; s < c.draft.stages; ++s)
    with.rows_near("mtp" + std::to_string(s) + ".context_kv", "context_kv", c.layers + s, rows);
  std::vector<float> logits;
  for (const int32_t r : rows) {
    const auto row = std::span(run.prompt_logits).subspan(static_cast<size_t>(r) * v, v);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  with.near("logits", logits);
  CHECK(argmax_rows(run.prompt_logits, v) == want.ints("argmax"));
  comparison decode(want, run.decode, c, b);
  decode.near("decode.logits", run.decode_logits);
  if (want.has("decode.main_hidden")) {
    std::vector<float> hidden = decode.seen("main_hidden", -1).values;
    decode.near("decode.main_hidden", hidden);
  }
  CHECK(argmax_rows(run.decode_logits, v) == want.ints("decode.argmax"));
  if (!want.has("draft.tokens")) return;
  compare_drafts(want, decode, run, c);
  comparison first(want, run.first_draft, c, b);
  compare_first_draft(want, first, c);
}

void compare_row_ids(expected_file& want, const case_folder& from, std::span<const int32_t> prompt,
                     std::span<const image_span> images) {
  const checkpoint files(from.folder);
  engram_tables tables(files, from.token_map, 0, 1, 1);
  sequence_rows s;
  s.tokens = prompt;
  s.images = images;
  const std::vector<int64_t> got = tables.row_ids({&s, 1});
  const std::vector<int32_t> ids = want.ints("engram_row_ids");
  CHECK(std::equal(got.begin(), got.end(), ids.begin(), ids.end()));
}

// Tail prefill and greedy continuation: "tail.*" and "greedy.*" of a file.
void compare_continuations(expected_file& want, backend& be, const case_folder& from, std::span<const int32_t> ids,
                           size_t n_prompt, int64_t tail, size_t n_greedy_prompt, bounds b, bool round_caches) {
  const config c = read_config(from.folder);
  const capture none;
  comparison with(want, none, c, b);
  if (want.has("tail.logits_last")) {
    for (const size_t chunk : {n_prompt, size_t{7}, size_t{64}}) {
      runner r(be, from, static_cast<int64_t>(ids.size()), prefill_mode::tail, tail);
      r.of().round_caches(round_caches);
      with.near("tail.logits_last", r.prefill(ids.first(n_prompt), chunk, false));
      std::vector<float> decode;
      for (size_t i = 0; i < static_cast<size_t>(want.shape("tail.decode_logits")[0]); ++i) {
        const std::vector<float> row = r.step(ids.subspan(n_prompt + i, 1), static_cast<int64_t>(n_prompt + i), 1);
        decode.insert(decode.end(), row.begin(), row.end());
      }
      with.near("tail.decode_logits", decode);
    }
  }
  if (!want.has("greedy.tokens")) return;
  const std::vector<int32_t> tokens = want.ints("greedy.tokens"), accepted = want.ints("greedy.accepted");
  runner r(be, from, static_cast<int64_t>(n_greedy_prompt + tokens.size()) + 16);
  r.of().round_caches(round_caches);
  CHECK(r.plain_greedy(ids.first(n_greedy_prompt), tokens.size()) == tokens);
  std::vector<int32_t> got;
  CHECK(r.speculative_greedy(ids.first(n_greedy_prompt), tokens.size(), got) == tokens);
  CHECK(got == accepted);
}

struct golden_name {
  std::string name, variant;
  int64_t tail;
  size_t greedy_prompt;
};
const golden_name tiny_a{"tiny-a", "native", 64, 60}, tiny_b{"tiny-b", "native", 40, 30},
    tiny_b_bf16{"tiny-b", "bf16", 40, 30};

// False, and a line, when the case is not on this machine.
bool present(const golden_name& g) {
  const fs::path p = find_case(g.name);
  const fs::path beside = fs::path(TROUPE_SOURCE_DIR) / "../shared/golden/model" / g.name;
  if (!p.empty() && (fs::exists(p / g.variant) || fs::exists(beside / g.variant))) {
    MESSAGE("golden case " << g.name << " " << g.variant << ": ran");
    return true;
  }
  MESSAGE("golden case " << g.name << " " << g.variant << ": absent");
  return false;
}

case_folder open_case(const golden_name& g) {
  const fs::path p = find_case(g.name);
  if (fs::exists(p / g.variant)) return case_folder(p, g.variant);
  return case_folder(fs::path(TROUPE_SOURCE_DIR) / "../shared/golden/model" / g.name, g.variant);
}

void run_whole(const golden_name& g, const char* file, bool round_caches, bounds b) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / file);
  const std::vector<int32_t> ids = want.ints("ids");
  const auto n_decode = static_cast<size_t>(want.shape("decode.logits")[0]), n_prompt = ids.size() - n_decode;
  on_ranks(1, [&](backend& be, int) {
    const case_run whole = run_case(be, from, ids, n_prompt, n_prompt, round_caches, true);
    compare_case(want, from, whole, b);
    if (want.has("engram_row_ids")) compare_row_ids(want, from, std::span(ids).first(n_prompt), {});
    compare_continuations(want, be, from, ids, n_prompt, g.tail, g.greedy_prompt, b, round_caches);
  });
  CHECK(want.unused() == std::vector<std::string>{});
}

// The host backend is one numeric class: the bits do not depend on how a prompt was cut.
void run_chunks(const golden_name& g, std::initializer_list<size_t> chunks) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / "expected.safetensors");
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = ids.size() - static_cast<size_t>(want.shape("decode.logits")[0]);
  on_ranks(1, [&](backend& be, int) {
    const case_run whole = run_case(be, from, ids, n_prompt, n_prompt, true, false);
    for (const size_t chunk : chunks) {
      INFO("chunk " << chunk);
      const case_run cut = run_case(be, from, ids, n_prompt, chunk, true, false);
      CHECK(cut.prompt_logits == whole.prompt_logits);
      CHECK(cut.decode_logits == whole.decode_logits);
      for (size_t i = 0; i < cut.drafts.size(); ++i) {
        CHECK(cut.drafts[i].logits == whole.drafts[i].logits);
        CHECK(cut.drafts[i].confidence == whole.drafts[i].confidence);
      }
    }
  });
}

void run_two_ranks(const golden_name& g, const char* file, bool round_caches, bounds b) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / file);
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = ids.size() - static_cast<size_t>(want.shape("decode.logits")[0]);
  case_run runs[2];
  on_ranks(2, [&](backend& be, int rank) { runs[rank] = run_case(be, from, ids, n_prompt, 64, round_caches, false); });
  const config c = read_config(from.folder);
  const capture none;
  comparison with(want, none, c, b);
  with.near("decode.logits", runs[0].decode_logits);
  CHECK(argmax_rows(runs[0].prompt_logits, static_cast<size_t>(c.vocabulary)) == want.ints("argmax"));
  compare_drafts(want, with, runs[0], c);
  CHECK(runs[0].prompt_logits == runs[1].prompt_logits); // the same on every rank
  CHECK(runs[0].decode_logits == runs[1].decode_logits);
}

} // namespace

TEST_CASE("golden model: tiny-b without cache rounding agrees in everything it lists") {
  run_whole(tiny_b, "expected_noqdq.safetensors", false, exact_bounds);
}
TEST_CASE("golden model: tiny-b agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(tiny_b, "expected.safetensors", true, rounded_bounds);
}
TEST_CASE("golden model: tiny-b in bf16 agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(tiny_b_bf16, "expected.safetensors", true, rounded_bounds);
  run_whole(tiny_b_bf16, "expected_noqdq.safetensors", false, exact_bounds);
}
TEST_CASE("golden model: tiny-a agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(tiny_a, "expected_noqdq.safetensors", false, exact_bounds);
  run_whole(tiny_a, "expected.safetensors", true, rounded_bounds);
}
TEST_CASE("golden model: chunks of any size give the same bits" * doctest::test_suite("slow")) {
  run_chunks(tiny_b, {1, 7, 64, 100});
  run_chunks(tiny_a, {1, 7, 64, 100});
}
TEST_CASE("golden model: two ranks agree" * doctest::test_suite("slow")) {
  run_two_ranks(tiny_b, "expected_noqdq.safetensors", false, exact_bounds);
  run_two_ranks(tiny_b, "expected.safetensors", true, rounded_bounds);
  run_two_ranks(tiny_a, "expected.safetensors", true, rounded_bounds);
}
