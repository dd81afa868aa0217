// Every message that may cross hosts survives a serialiser, field by field.
#include "actors/messages.h"
#include "actors/tier_messages.h"

#include <caf/all.hpp>
#include <doctest/doctest.h>

using namespace troupe;

namespace {

// Bytes of a message; two messages are equal when their bytes are.
struct wire_world {
  caf::actor_system_config config;
  caf::actor_system system{config};

  template <class message> std::vector<char> to_bytes(message& m) {
    std::vector<char> bytes;
    caf::binary_serializer out(system, bytes);
    REQUIRE_FALSE(out(m));
    return bytes;
  }
  template <class message> message round_trip(message m) {
    const auto bytes = to_bytes(m);
    message back;
    caf::binary_deserializer in(system, bytes);
    REQUIRE_FALSE(in(back));
    CHECK(to_bytes(back) == bytes);
    CHECK(bytes.size() > 0);
    return back;
  }
};

sampling_params params() {
  sampling_params p;
  p.temperature = 0.5F;
  p.logit_bias = {{3, -1.5F}};
  p.allowed_ids = {1, 2};
  p.bad_words = {{4, 5}, {6}};
  p.stop_ids = {7};
  p.seed = ~uint64_t{0};
  p.n_logprobs = 3;
  p.suppress_reserved = false;
  return p;
}

step_plan plan() {
  step_plan p;
  p.epoch = 4;
  p.step = 9;
  p.started.push_back({sequence_id{5}, 2, 77, {{3, 4, 5, 1, 6}}, params(), "salt", turn_id{2}, {1, 2}, {2}});
  p.rows.push_back({sequence_id{5}, 2, 12, {8, 9}, true, 1, true});
  p.ended.push_back({sequence_id{6}, -1, 40, true});
  p.ends_resume = true;
  p.with_images = {sequence_id{11}, sequence_id{12}};
  return p;
}

} // namespace

TEST_CASE_FIXTURE(wire_world, "wire: admission") {
  turn_admit t{turn_id{1}, {}, true, 6};
  t.sequences.push_back({t.turn, sequence_id{2}, -3, {1, 2, 3}, {{5, 6, 7, 0, 8}}, 99, params(), "s", true, {4, 5}});
  const auto back = round_trip(t);
  CHECK(back.sequences.at(0).sampling.bad_words == params().bad_words);
  CHECK(back.sequences.at(0).prompt == std::vector<int32_t>{1, 2, 3});
  CHECK(back.sequences.at(0).generated == std::vector<int32_t>{4, 5});
  CHECK(back.is_resumed);
  CHECK(round_trip(images_wanted{turn_id{3}, 7}).ranks == 7);
  CHECK(round_trip(images_sent{turn_id{3}, 8}).ranks == 8);
  round_trip(turn_queued{turn_id{3}});
  CHECK(round_trip(turn_refused{turn_id{3}, {429, "RateLimitError", "full", "p", 7, 2}}).why.retry_after_s == 7);
  const image_piece piece{{sequence_id{8}, sequence_id{9}}, 1, 2, 3, 4, 5, 6, 7, {1, 2, 255}};
  const auto image = round_trip(piece);
  CHECK(image.sequences == piece.sequences);
  CHECK(image.bytes == piece.bytes);
}

TEST_CASE_FIXTURE(wire_world, "wire: a step on its way round the ring") {
  CHECK(round_trip(plan()).started.at(0).images.at(0).grid_w == 5);
  CHECK(round_trip(plan()).with_images == plan().with_images);
  step_placed placed;
  placed.plan = plan();
  placed.blocks = {{sequence_id{5}, {block_id{3}, block_id{1}}}};
  CHECK(round_trip(placed).blocks.at(0).blocks == placed.blocks[0].blocks);
  CHECK(round_trip(step_ready{placed}).placed.blocks.at(0).blocks == placed.blocks[0].blocks);
  step_placed cached = placed;
  cached.cached = {{sequence_id{5}, 64, 32, 16, snapshot_id{9}, {1, 2}, {3}}};
  cached.saves_before = {{1, 70, snapshot_id{4}}};
  cached.saves_after = {{2, 71, snapshot_id{5}}};
  cached.moves = {{block_move::kind::copy, 1, 2}, {block_move::kind::in, 7, 2}};
  cached.reads = {{entry_id{9}, snapshot_id{4}, 3, 70}};
  cached.writes = {{entry_id{10}, entry_id{8}, 128, 3, "salt", {1, 2}, snapshot_id{4}, 5, -1}};
  cached.removes = {entry_id{7}};
  cached.dropped = {snapshot_id{7}, snapshot_id{8}};
  CHECK(round_trip(cached).dropped == cached.dropped);
  CHECK(round_trip(cached).cached.at(0).seen == std::vector<int32_t>{3});
  CHECK(round_trip(cached).cached.at(0).from_disk == 16);
  CHECK(round_trip(cached).reads.at(0).n_tokens == 70);
  step_result result{4, 9, {}, 123, 45};
  result.results.push_back(
      {sequence_id{5}, {{7, -0.5F, {{8, -0.25F}}}}, 6, 4, 2, "f", 503, 70, 3, 2, {1, 2}, {0.5F, 0.25F}});
  const auto back = round_trip(result);
  CHECK(back.results.at(0).tokens.at(0).best.at(0).logprob == -0.25F);
  CHECK(back.results.at(0).from_memory == 4);
  CHECK(back.results.at(0).status == 503);
  CHECK(back.results.at(0).n_accepted == 2);
  CHECK(back.results.at(0).next_drafts == std::vector<int32_t>{1, 2});
  CHECK(back.results.at(0).confidence.at(1) == 0.25F);
  CHECK(back.draft_us == 45);
}

TEST_CASE_FIXTURE(wire_world, "wire: tokens, ends and side inputs") {
  tokens_accepted t{2, 3, {}, 4};
  t.sequences.push_back({sequence_id{1}, {{5, 0, {}}}, 2, 3, end_cause::length, "x", 400, 5, 4});
  CHECK(round_trip(t).sequences.at(0).end == end_cause::length);
  CHECK(round_trip(t).number == 4);
  CHECK(round_trip(tokens_taken{2, 8}).number == 8);
  round_trip(turn_stopped{sequence_id{1}});
  round_trip(stream_paused{turn_id{1}});
  round_trip(stream_resumed{turn_id{1}});
  round_trip(client_gone{turn_id{1}});
  CHECK(round_trip(turn_failed{turn_id{1}, {408, "t", "m", "", 0, 0}}).why.status == 408);
  CHECK(round_trip(turn_ended{turn_id{1}, {1, 2, 3, 4, 5, 6}, "stop", 5, 6, 7}).usage.rejected_drafts == 6);
  CHECK(round_trip(draft_limit{3}).n_tokens == 3);
  CHECK(round_trip(drain_begin{true, "w"}).why == "w");
  wiring w;
  w.epoch = 6;
  w.ranks = 3;
  w.rank_actors.resize(2);
  CHECK(round_trip(w).epoch == 6);
  CHECK(round_trip(w).rank_actors.size() == 2);
  CHECK(round_trip(epoch_begun{4}).epoch == 4);
  CHECK(round_trip(turns_resumed{5}).epoch == 5);
  CHECK(round_trip(fetch_resumed{5, 6, {{sequence_id{1}, {}, {3, 4}, 9}}}).sequences.at(0).tokens.size() == 2);
  scheduler_status s;
  s.n_ended = {1, 2, 3, 4, 5};
  s.draining = true;
  CHECK(round_trip(s).n_ended == s.n_ended);
}

TEST_CASE_FIXTURE(wire_world, "wire: entries of the disk tier and pins") {
  const tier_write what{entry_id{10}, entry_id{8}, 128, 3, "salt", {1, 2}, snapshot_id{4}, 5, -1};
  const auto save = round_trip(tier_save{2, what, true, 9, 3, {7, 8}});
  CHECK(save.what.symbols == what.symbols);
  CHECK(save.what.slot == -1);
  CHECK(save.bytes == std::vector<uint8_t>{7, 8});
  CHECK(round_trip(tier_orders{2, {{entry_id{9}, snapshot_id{4}, 3}}, {5}}).reads.at(0).slot == 3);
  CHECK(round_trip(tier_arrived{2, {entry_id{9}, snapshot_id{4}, 3}, 9, 0, {1}}).where.entry == entry_id{9});
  CHECK(round_trip(tier_done{2, {{entry_id{9}, true, true}}}).results.at(0).is_done);
  const tier_listed list{2, {{entry_id{9}, entry_id{1}, true, 70, 2, "s", {3}}}, true, false, {{"name", entry_id{9}}}};
  CHECK(round_trip(list).entries.at(0).n_tokens == 70);
  CHECK(round_trip(list).pins.at(0).name == "name");
  CHECK_FALSE(round_trip(list).is_open);
  round_trip(tier_wiring{2, nullptr, nullptr});
  CHECK(round_trip(tier_pins{2, {{"name", entry_id{9}}}}).pins.at(0).entry == entry_id{9});
  CHECK(round_trip(pin_prefix{"name", {1}, {{3, 4, 5, 1}}, "salt"}).images.at(0).grid_w == 5);
  CHECK(round_trip(pin_answer{7, "why"}).n_tokens == 7);
  CHECK(round_trip(unpin_prefix{"name"}).name == "name");
  CHECK(round_trip(pin_list{{{"name", 7, 2, true}}}).prefixes.at(0).is_on_disk);
}
