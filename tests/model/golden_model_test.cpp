// The model against its golden cases: every listed intermediate, chunk sizes, decode, drafts, tail, one rank and two.
#include "tests/model/golden_compare.h"

using namespace golden;

namespace {

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
  if (look) r.of().observe(capture_into(be, run.prompt), static_cast<int64_t>(ids.size()));
  run.prompt_logits = r.prefill(ids.first(n_prompt), chunk);
  const auto vocabulary = static_cast<size_t>(r.of().settings().vocabulary);
  for (size_t at = n_prompt; at < ids.size(); ++at) {
    if (look) r.of().observe(capture_into(be, run.decode), static_cast<int64_t>(ids.size()));
    const std::vector<float> logits = r.step(ids.subspan(at, 1), static_cast<int64_t>(at), 1);
    run.decode_logits.insert(run.decode_logits.end(), logits.begin(), logits.end());
    if (look && at == n_prompt)
      r.of().observe(capture_into(be, run.first_draft), static_cast<int64_t>(ids.size()));
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
      INFO("tail, chunk " << chunk);
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
const golden_name tiny_a{"tiny-a", "native", 64, 60}, b_native{"tiny-b", "native", 40, 30},
    b_bf16{"tiny-b", "bf16", 40, 30};

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

void run_whole(const golden_name& g, const char* file, bool round_caches, bounds b, bool scalar = false) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / file);
  const std::vector<int32_t> ids = want.ints("ids");
  const auto n_decode = static_cast<size_t>(want.shape("decode.logits")[0]), n_prompt = ids.size() - n_decode;
  on_ranks(
      1,
      [&](backend& be, int) {
        const case_run whole = run_case(be, from, ids, n_prompt, n_prompt, round_caches, true);
        compare_case(want, from, whole, b);
        if (want.has("engram_row_ids")) compare_row_ids(want, from, std::span(ids).first(n_prompt), {});
        compare_continuations(want, be, from, ids, n_prompt, g.tail, g.greedy_prompt, b, round_caches);
      },
      scalar);
  CHECK(want.unused() == std::vector<std::string>{});
}

// The host backend is one numeric class: the bits do not depend on how a prompt was cut.
void run_chunks(const golden_name& g, std::initializer_list<size_t> chunks, int n_ranks) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / "expected.safetensors");
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = ids.size() - static_cast<size_t>(want.shape("decode.logits")[0]);
  on_ranks(n_ranks, [&](backend& be, int) {
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

// Every layer alone: after each, its golden output takes the place of ours (host tensors are plain memory).
void run_isolated(const golden_name& g) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / "expected.safetensors");
  const std::vector<int32_t> ids = want.ints("ids"), rows = want.ints("rows"), all = want.ints("stream_rows");
  const size_t n_prompt = all.size(); // tiny-b lists the streams of all positions
  on_ranks(1, [&](backend& be, int) {
    capture seen;
    runner r(be, from, static_cast<int64_t>(n_prompt));
    const observer keep = capture_into(be, seen);
    r.of().observe(
        [&](std::string_view name, int32_t layer, tensor t) {
          keep(name, layer, t);
          const std::string golden = "layer" + std::to_string(layer) + "." + std::string(name);
          if ((name != "stream" && name != "hc_ffn_pre") || !want.has(golden)) return;
          const std::vector<float> v = want.floats(golden);
          REQUIRE(static_cast<int64_t>(v.size()) == t.n_elements());
          be.upload(t, v.data(), t.size_bytes());
        },
        static_cast<int64_t>(n_prompt));
    r.prefill(std::span(ids).first(n_prompt), n_prompt, false);
    const config c = read_config(from.folder);
    comparison with(want, seen, c, isolated_bounds);
    for (int32_t l = 0; l < c.layers; ++l) with.layer(l, rows, all);
    with.rows_near("final_fold", "final_fold", -1, rows);
  });
}

// What the ranks of a group saw, as one: heads are split in order, everything else is the same on both.
capture join(const capture& first, const capture& second) {
  capture all = first;
  for (auto& [key, t] : all) {
    if (key.second != "q" && key.second != "attn_o") continue;
    const captured_tensor& other = second.at(key);
    captured_tensor joined;
    joined.width = t.width + other.width;
    for (int64_t r = 0; r * t.width < static_cast<int64_t>(t.values.size()); ++r)
      for (const captured_tensor* part : {&std::as_const(t), &other}) {
        const auto row = part->row(r);
        joined.values.insert(joined.values.end(), row.begin(), row.end());
      }
    t = std::move(joined);
  }
  return all;
}

void run_two_ranks(const golden_name& g, const char* file, bool round_caches, bounds b) {
  if (!present(g)) return;
  const case_folder from = open_case(g);
  expected_file want(from.source / file), want_of_second(from.source / file);
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = ids.size() - static_cast<size_t>(want.shape("decode.logits")[0]);
  case_run runs[2];
  on_ranks(2, [&](backend& be, int rank) {
    runs[rank] = run_case(be, from, ids, n_prompt, n_prompt, round_caches, true);
    compare_continuations(rank == 0 ? want : want_of_second, be, from, ids, n_prompt, g.tail, g.greedy_prompt, b,
                          round_caches);
  });
  CHECK(runs[0].prompt_logits == runs[1].prompt_logits); // the same on every rank
  CHECK(runs[0].decode_logits == runs[1].decode_logits);
  runs[0].prompt = join(runs[0].prompt, runs[1].prompt);
  compare_case(want, from, runs[0], b);
  if (want.has("engram_row_ids")) compare_row_ids(want, from, std::span(ids).first(n_prompt), {});
  CHECK(want.unused() == std::vector<std::string>{});
}

} // namespace

TEST_CASE("golden model: tiny-b without cache rounding agrees in everything it lists") {
  run_whole(b_native, "expected_noqdq.safetensors", false, exact_bounds);
}
TEST_CASE("golden model: the plain twins agree in the same way" * doctest::test_suite("slow")) {
  run_whole(b_native, "expected_noqdq.safetensors", false, exact_bounds, true);
}
TEST_CASE("golden model: tiny-b agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(b_native, "expected.safetensors", true, rounded_bounds);
}
TEST_CASE("golden model: every layer alone agrees from golden streams") { run_isolated(b_native); }
TEST_CASE("golden model: tiny-b in bf16 agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(b_bf16, "expected.safetensors", true, rounded_bounds);
  run_whole(b_bf16, "expected_noqdq.safetensors", false, exact_bounds);
}
TEST_CASE("golden model: tiny-a agrees in everything it lists" * doctest::test_suite("slow")) {
  run_whole(tiny_a, "expected_noqdq.safetensors", false, exact_bounds);
  run_whole(tiny_a, "expected.safetensors", true, rounded_bounds);
}
TEST_CASE("golden model: chunks of any size give the same bits" * doctest::test_suite("slow")) {
  for (const int n_ranks : {1, 2}) {
    run_chunks(b_native, {1, 7, 64, 100}, n_ranks);
    run_chunks(tiny_a, {1, 7, 64, 100}, n_ranks);
  }
}
TEST_CASE("golden model: two ranks agree" * doctest::test_suite("slow")) {
  run_two_ranks(b_native, "expected_noqdq.safetensors", false, exact_bounds);
  run_two_ranks(b_native, "expected.safetensors", true, rounded_two_rank_bounds);
  run_two_ranks(tiny_a, "expected_noqdq.safetensors", false, exact_bounds);
  run_two_ranks(tiny_a, "expected.safetensors", true, rounded_two_rank_bounds);
  run_two_ranks(b_bf16, "expected.safetensors", true, rounded_two_rank_bounds);
  run_two_ranks(b_bf16, "expected_noqdq.safetensors", false, exact_bounds);
}
TEST_CASE("golden model: released_arithmetic holds nothing but what is for information only") {
  for (const golden_name& g : {tiny_a, b_native}) {
    const fs::path p = find_case(g.name);
    if (p.empty()) continue;
    const expected_file file(p / "released_arithmetic.safetensors");
    CHECK(file.unused() == std::vector<std::string>{"rows", "logits", "argmax"});
  }
}
