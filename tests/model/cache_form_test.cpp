// Caches as records of codes and scales: the released model's bytes, and the bits of a model that keeps floats.
#include "model/deepseek_v41/snapshot.h"
#include "tests/model/golden_case.h"

using namespace golden;

namespace {

// The released sizes that caches depend on.                                                       model.md section 1
config released() {
  config c;
  c.layers = 40, c.head_dim = 512, c.index_dim = 128, c.window = 128, c.draft.stages = 3, c.draft.block = 5;
  c.kv_sources = {2, 8, 14, 20}, c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36}, c.candidate_source = 20;
  for (int32_t l = 0; l < 43; ++l) c.ratios.push_back(l < 2 || l >= 40 ? 0 : l < 20 ? 2 : 1);
  return c;
}

struct run_of_model {
  std::vector<float> logits;
  std::vector<int32_t> drafts;
};

// A prompt in chunks, decoded rows with a draft after each.
run_of_model run(backend& be, const case_folder& from, cache_form form, prefill_mode mode) {
  run_of_model out;
  expected_file want(from.source / "expected.safetensors");
  const std::vector<int32_t> ids = want.ints("ids");
  const size_t n_prompt = ids.size() - 5;
  runner r(be, from, static_cast<int64_t>(ids.size()), mode, 40, false, form);
  out.logits = r.prefill(std::span(ids).first(n_prompt), 37, mode == prefill_mode::exact);
  for (size_t at = n_prompt; at < ids.size(); ++at) {
    const auto row = r.step(std::span(ids).subspan(at, 1), static_cast<int64_t>(at), 1);
    out.logits.insert(out.logits.end(), row.begin(), row.end());
    const draft_anchor anchor{.slot = runner::slot, .position = static_cast<int64_t>(at) + 1, .token = 7};
    const draft_result d = r.of().draft({&anchor, 1});
    out.logits.insert(out.logits.end(), d.logits.begin(), d.logits.end());
    out.drafts.insert(out.drafts.end(), d.tokens.begin(), d.tokens.end());
  }
  return out;
}

} // namespace

TEST_CASE("cache form: the released model takes 890 bytes a token and 528 a window row") {
  const config c = released();
  CHECK(bytes_per_block(c, cache_form::records, 64) == 64 * 890);
  CHECK(bytes_per_block(c, cache_form::floats, 64) == 64 * 6400);
  const cache_plan p = plan_caches(c, cache_form::records, 1, 1, 64, true);
  const int64_t pending = 3 * p.pending_pairs * 2 * 512 * 4;
  CHECK(bytes_per_slot(c, p, true) == 43 * 133 * 528 + pending);
  CHECK(bytes_per_snapshot(c, cache_form::records, false) < 40 * 127 * 528 + 3 * 4096 + 200);
}

TEST_CASE("cache form: a model gives the same bits with records as with floats") {
  for (const char* name : {"tiny-b", "tiny-a"}) {
    const fs::path p = find_case(name);
    if (p.empty()) continue;
    const case_folder from(p, "native");
    for (const prefill_mode mode : {prefill_mode::exact, prefill_mode::tail}) {
      const auto be = test::make_device(2);
      const auto floats = run(*be, from, cache_form::floats, mode), records = run(*be, from, cache_form::records, mode);
      CHECK(floats.logits == records.logits);
      CHECK(floats.drafts == records.drafts);
    }
  }
}

TEST_CASE("cache form: a cache takes the bytes that its plan says") {
  const case_folder from(find_case("tiny-b"), "native");
  const config c = read_config(from.folder);
  for (const cache_form form : {cache_form::floats, cache_form::records}) {
    const auto be = test::make_device(1);
    const cache_plan p = plan_caches(c, form, 3, 5, 64, true);
    const int64_t before = be->allocated_bytes();
    make_caches(*be, c, p, true);
    const int64_t planned = 5 * bytes_per_block(c, form, 64) + 3 * bytes_per_slot(c, p, true);
    CHECK(be->allocated_bytes() - before == planned);
  }
}
