// How each message crosses a wire: its fields in order. A new field belongs here too; wire_test compares.
#include "actors/wire.h"
#include "actors/tier_messages.h"

#include <caf/all.hpp>

namespace troupe {

#define TROUPE_FIELDS(type, ...)                                                                                       \
  template <class inspector> typename inspector::result_type inspect(inspector& f, type& x) {                          \
    return f(caf::meta::type_name("troupe::" #type), __VA_ARGS__);                                                     \
  }

// The same with a list of ids, which travels as numbers.
#define TROUPE_FIELDS_OF_LISTS(type, list, other, ...)                                                                 \
  template <class inspector> typename inspector::result_type inspect(inspector& f, type& x) {                          \
    std::vector<uint64_t> raw, more;                                                                                   \
    for (const auto i : list) raw.push_back(static_cast<uint64_t>(i));                                                 \
    for (const auto i : other) more.push_back(static_cast<uint64_t>(i));                                               \
    const auto load = [&]() -> caf::error {                                                                            \
      list.clear();                                                                                                    \
      for (const auto i : raw) list.push_back(static_cast<typename decltype(list)::value_type>(i));                    \
      other.clear();                                                                                                   \
      for (const auto i : more) other.push_back(static_cast<typename decltype(other)::value_type>(i));                 \
      return caf::none;                                                                                                \
    };                                                                                                                 \
    return f(caf::meta::type_name("troupe::" #type), __VA_ARGS__, raw, more, caf::meta::load_callback(load));          \
  }
#define TROUPE_FIELDS_OF_LIST(type, list, number, ...)                                                                 \
  template <class inspector> typename inspector::result_type inspect(inspector& f, type& x) {                          \
    using id = typename decltype(list)::value_type;                                                                    \
    std::vector<number> raw;                                                                                           \
    for (const auto i : list) raw.push_back(static_cast<number>(i));                                                   \
    const auto load = [&]() -> caf::error {                                                                            \
      list.clear();                                                                                                    \
      for (const auto i : raw) list.push_back(static_cast<id>(i));                                                     \
      return caf::none;                                                                                                \
    };                                                                                                                 \
    return f(caf::meta::type_name("troupe::" #type), __VA_ARGS__, raw, caf::meta::load_callback(load));                \
  }

TROUPE_FIELDS(token_logprob, x.id, x.logprob)
TROUPE_FIELDS(sampled_token, x.id, x.logprob, x.best)
TROUPE_FIELDS(sampling_params, x.temperature, x.top_p, x.top_k, x.min_p, x.frequency_penalty, x.presence_penalty,
              x.repetition_penalty, x.logit_bias, x.allowed_ids, x.bad_words, x.stop_ids, x.ignore_eos, x.min_tokens,
              x.seed, x.choice, x.n_logprobs, x.suppress_reserved)
TROUPE_FIELDS(api_error, x.status, x.type, x.message, x.param, x.retry_after_s, x.queue_position)
TROUPE_FIELDS(turn_usage, x.prompt_tokens, x.completion_tokens, x.cached_tokens, x.reasoning_tokens, x.accepted_drafts,
              x.rejected_drafts)
TROUPE_FIELDS_OF_LIST(image_piece, x.sequences, uint64_t, x.image, x.hash, x.width, x.height, x.grid_h, x.grid_w,
                      x.offset, x.bytes)
TROUPE_FIELDS(image_place, x.start, x.grid_h, x.grid_w, x.image, x.hash)
TROUPE_FIELDS(sequence_admit, x.turn, x.id, x.priority, x.prompt, x.images, x.max_tokens, x.sampling, x.cache_salt,
              x.shares_prompt, x.generated, x.n_cached)
TROUPE_FIELDS(turn_admit, x.turn, x.sequences, x.is_resumed, x.epoch)
TROUPE_FIELDS(images_wanted, x.turn, x.ranks)
TROUPE_FIELDS(images_sent, x.turn, x.ranks)
TROUPE_FIELDS(turn_queued, x.turn)
TROUPE_FIELDS(turn_refused, x.turn, x.why)
TROUPE_FIELDS(sequence_start, x.id, x.slot, x.n_prompt, x.images, x.sampling, x.cache_salt, x.turn, x.prompt,
              x.generated)
TROUPE_FIELDS(planned_rows, x.id, x.slot, x.start, x.tokens, x.samples, x.n_drafts, x.wants_drafts)
TROUPE_FIELDS(sequence_end, x.id, x.slot, x.n_tokens, x.is_parked)
TROUPE_FIELDS_OF_LIST(step_plan, x.with_images, uint64_t, x.epoch, x.step, x.started, x.rows, x.ended, x.ends_resume)
TROUPE_FIELDS_OF_LIST(new_blocks, x.blocks, int32_t, x.id)
TROUPE_FIELDS(cached_prefix, x.id, x.n_tokens, x.from_memory, x.from_disk, x.snapshot, x.before, x.seen)
TROUPE_FIELDS(block_move, x.what, x.from, x.to)
TROUPE_FIELDS(tier_write, x.entry, x.parent, x.n_tokens, x.floor, x.salt, x.symbols, x.snapshot, x.block, x.slot)
TROUPE_FIELDS(tier_read, x.entry, x.snapshot, x.slot, x.n_tokens)
TROUPE_FIELDS(snapshot_save, x.slot, x.n_tokens, x.snapshot)
TROUPE_FIELDS_OF_LISTS(step_placed, x.dropped, x.removes, x.plan, x.blocks, x.cached, x.saves_before, x.saves_after,
                       x.moves, x.reads, x.writes)
TROUPE_FIELDS(sequence_failure, x.id, x.why, x.status)
TROUPE_FIELDS(step_ready, x.placed)
TROUPE_FIELDS(sequence_result, x.id, x.tokens, x.cached_tokens, x.from_memory, x.from_disk, x.failure, x.status,
              x.n_tokens, x.n_drafts, x.n_accepted, x.next_drafts, x.confidence)
TROUPE_FIELDS(step_result, x.epoch, x.step, x.results, x.compute_us, x.draft_us)
TROUPE_FIELDS(accepted_tokens, x.id, x.tokens, x.cached_tokens, x.queue_us, x.end, x.failure, x.status, x.n_drafts,
              x.n_accepted)
TROUPE_FIELDS(tokens_accepted, x.epoch, x.step, x.sequences, x.number)
TROUPE_FIELDS(tokens_taken, x.epoch, x.number)
TROUPE_FIELDS(turn_stopped, x.id)
TROUPE_FIELDS(stream_paused, x.turn)
TROUPE_FIELDS(stream_resumed, x.turn)
TROUPE_FIELDS(client_gone, x.turn)
TROUPE_FIELDS(turn_failed, x.turn, x.why)
TROUPE_FIELDS(turn_ended, x.turn, x.usage, x.cause, x.queue_us, x.first_token_us, x.decode_us)
TROUPE_FIELDS(wiring, x.epoch, x.cache, x.ranks, x.journal, x.scheduler, x.kv_cache, x.fan_out, x.engram_fetches,
              x.rank_actors, x.disks)
TROUPE_FIELDS(epoch_begun, x.epoch)
TROUPE_FIELDS(turns_resumed, x.epoch)
TROUPE_FIELDS(sequence_tail, x.id, x.images, x.tokens, x.end)
TROUPE_FIELDS(fetch_resumed, x.epoch, x.step, x.sequences)
TROUPE_FIELDS(drain_begin, x.now, x.why)
TROUPE_FIELDS(draft_limit, x.n_tokens)
TROUPE_FIELDS(scheduler_status, x.n_running, x.n_waiting, x.n_steps, x.prompt_tokens, x.generated_tokens, x.n_blocks,
              x.n_blocks_used, x.n_refused, x.n_ended, x.draining)
TROUPE_FIELDS(miss_question, x.prompt, x.images, x.cache_salt)
TROUPE_FIELDS(miss_answer, x.n_tokens, x.n_cached, x.first_differing, x.missing)
TROUPE_FIELDS(tier_save, x.cache, x.what, x.is_there, x.size_bytes, x.offset, x.bytes)
TROUPE_FIELDS(tier_orders, x.cache, x.reads, x.removes)
TROUPE_FIELDS(tier_arrived, x.cache, x.where, x.size_bytes, x.offset, x.bytes)
TROUPE_FIELDS(tier_result, x.entry, x.is_write, x.is_done)
TROUPE_FIELDS(tier_done, x.cache, x.results)
TROUPE_FIELDS(tier_stored, x.entry, x.parent, x.is_snapshot, x.n_tokens, x.floor, x.salt, x.symbols)
TROUPE_FIELDS(tier_pin, x.name, x.entry)
TROUPE_FIELDS(tier_listed, x.cache, x.entries, x.is_last, x.is_open, x.pins)
TROUPE_FIELDS(tier_pins, x.cache, x.pins)
TROUPE_FIELDS(pin_prefix, x.name, x.prompt, x.images, x.cache_salt)
TROUPE_FIELDS(pin_answer, x.n_tokens, x.refused)
TROUPE_FIELDS(unpin_prefix, x.name)
TROUPE_FIELDS(pinned_prefix, x.name, x.n_tokens, x.n_blocks, x.is_on_disk)
TROUPE_FIELDS(pin_list, x.prefixes)
TROUPE_FIELDS(tier_wiring, x.cache, x.rank, x.kv_cache)
#undef TROUPE_FIELDS
#undef TROUPE_FIELDS_OF_LIST
#undef TROUPE_FIELDS_OF_LISTS

#define TROUPE_DEFINED(type)                                                                                           \
  caf::error inspect(caf::serializer& f, type& x) { return inspect<caf::serializer>(f, x); }                           \
  caf::error inspect(caf::deserializer& f, type& x) { return inspect<caf::deserializer>(f, x); }                       \
  void inspect(caf::detail::stringification_inspector& f, type& x) {                                                   \
    inspect<caf::detail::stringification_inspector>(f, x);                                                             \
  }
TROUPE_RING_MESSAGES(TROUPE_DEFINED)
TROUPE_TIER_MESSAGES(TROUPE_DEFINED)
#undef TROUPE_DEFINED

} // namespace troupe
