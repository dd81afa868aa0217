// Parking over the shipped model: a turn whose blocks were taken away says bit for bit what it says with plenty.
#include "tests/actors/hungry_turns.h"
#include "tests/actors/tiny_ring.h"

#include <algorithm>
#include <filesystem>

using namespace troupe;

namespace {

// `last`: the one of the lowest class.
std::vector<chat_request> hungry_turns(size_t last) {
  auto all = troupe::hungry_turns();
  all[last].priority = 20;
  return all;
}

void check_same(const std::vector<chat_request>& turns, tiny_options tight) {
  tiny_options plenty = tight;
  plenty.n_blocks = 400;
  plenty.overcommit = false;
  tight.overcommit = true;
  tiny_ring a(tight), b(plenty);
  const auto said = a.ask_all(turns), wanted = b.ask_all(turns);
  for (size_t i = 0; i < turns.size(); ++i) {
    CAPTURE(i);
    CHECK(said[i]->said == wanted[i]->said);
    CHECK(said[i]->choices.size() == static_cast<size_t>(turns[i].n));
    CHECK(said[i]->usage.prompt_tokens == wanted[i]->usage.prompt_tokens);
    CHECK(said[i]->usage.completion_tokens == wanted[i]->usage.completion_tokens);
    CHECK(said[i]->usage.cached_tokens < said[i]->usage.prompt_tokens); // its own state of before is no hit
  }
  for (const auto& [mine, theirs] : {std::pair{&a.r.numbers->prompt_tokens, &b.r.numbers->prompt_tokens},
                                     {&a.r.numbers->generated_tokens, &b.r.numbers->generated_tokens},
                                     {&a.r.numbers->cache_queries, &b.r.numbers->cache_queries}})
    CHECK(mine->load() == theirs->load()); // what comes back is not counted again
  MESSAGE("turns parked: ", a.r.numbers->preemptions.load());
  CHECK(a.r.numbers->preemptions > 0);
  CHECK(b.r.numbers->preemptions == 0);
}

} // namespace

TEST_CASE("parking: tokens and log-probabilities are those of plenty of blocks" * doctest::test_suite("slow")) {
  const auto three = 3 * plan_state(tiny_folder, host_caches).per_snapshot;
  SUBCASE("with the prefix cache") { check_same(hungry_turns(2), {.n_blocks = 21}); }
  SUBCASE("without it") { check_same(hungry_turns(1), {.n_blocks = 21, .snapshot_bytes = 0}); }
  SUBCASE("with drafts") { check_same(hungry_turns(1), {.n_blocks = 20, .n_drafts = 5}); }
  SUBCASE("with drafts, and a cache of three snapshots") {
    check_same(hungry_turns(0), {.n_blocks = 20, .n_drafts = 5, .snapshot_bytes = three});
  }
  SUBCASE("in tail mode") {
    check_same(hungry_turns(2), {.n_blocks = 21, .snapshot_bytes = 0, .mode = prefill_mode::tail, .tail_tokens = 16});
  }
}

TEST_CASE("parking: a turn with images comes back with them" * doctest::test_suite("slow")) {
  std::vector<std::string> images;
  for (const auto& e : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/golden/tiny/images"))
    images.push_back(e.path().string());
  std::sort(images.begin(), images.end());
  REQUIRE(images.size() >= 2);
  for (const int64_t snapshot_bytes : {int64_t{64} << 20, int64_t{0}}) {
    auto with = tiny_image_chat({file_bytes(images[0]), file_bytes(images[1])}, "What is it?", 300);
    with.priority = 20;
    check_same({tiny_completion(tiny_words(24, 1), 310), with}, {.n_blocks = 11, .snapshot_bytes = snapshot_bytes});
  }
}

TEST_CASE("parking: a slow reader gives way to who waits, and goes on where it was" * doctest::test_suite("slow")) {
  tiny_ring tight({.n_blocks = 6, .n_drafts = 5, .overcommit = true}), plenty({.n_drafts = 5});
  const auto slow = tiny_completion(tiny_words(24, 1), 310, draw::seeded);
  const auto other = tiny_completion(tiny_words(60, 2), 20);
  const auto sink = tight.start(slow);
  sink->next_state = turn_sink::state::full; // from its first push on
  tight.w.run();
  const auto n_before = sink->choices.at(0).ids.size();
  CHECK(n_before < 20);
  sink->next_state = turn_sink::state::ok;
  const auto quick = tight.start(other);
  tight.w.run();
  CHECK(quick->has_ended());
  CHECK(tight.r.numbers->preemptions == 1);
  CHECK(sink->choices[0].ids.size() == n_before);
  caf::anon_send(tight.r.engine.fan_out, stream_resumed{turn_id{1}});
  tight.w.run();
  CHECK(sink->has_ended());
  CHECK(sink->said == plenty.ask(slow)->said);
  CHECK(quick->said == plenty.ask(other)->said);
  CHECK(tight.r.is_idle());
}
