// How each message crosses a wire: its fields in order, and the type ids of the ring. Included by messages.h alone.
#pragma once

#include "actors/messages.h"

#include <caf/error.hpp>
#include <caf/meta/load_callback.hpp>

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
TROUPE_FIELDS(cached_prefix, x.id, x.n_tokens, x.snapshot, x.before, x.seen)
TROUPE_FIELDS(block_move, x.what, x.from, x.to)
TROUPE_FIELDS(tier_write, x.entry, x.parent, x.n_tokens, x.floor, x.salt, x.symbols, x.snapshot, x.block, x.slot)
TROUPE_FIELDS(tier_read, x.entry, x.snapshot, x.slot)
TROUPE_FIELDS(snapshot_save, x.slot, x.n_tokens, x.snapshot)
TROUPE_FIELDS_OF_LISTS(step_placed, x.dropped, x.removes, x.plan, x.blocks, x.cached, x.saves_before, x.saves_after,
                       x.moves, x.reads, x.writes)
TROUPE_FIELDS(sequence_failure, x.id, x.why, x.status)
TROUPE_FIELDS(step_ready, x.placed, x.staging, x.failures)
TROUPE_FIELDS(sequence_result, x.id, x.tokens, x.cached_tokens, x.failure, x.status, x.n_tokens, x.n_drafts,
              x.n_accepted, x.next_drafts, x.confidence)
TROUPE_FIELDS(step_result, x.epoch, x.step, x.results, x.compute_us, x.draft_us)
TROUPE_FIELDS(accepted_tokens, x.id, x.tokens, x.cached_tokens, x.queue_us, x.end, x.failure, x.status, x.n_drafts,
              x.n_accepted)
TROUPE_FIELDS(tokens_accepted, x.epoch, x.step, x.sequences)
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
#undef TROUPE_FIELDS
#undef TROUPE_FIELDS_OF_LIST
#undef TROUPE_FIELDS_OF_LISTS

} // namespace troupe

// net adds its own block behind this one: CAF_BEGIN_TYPE_ID_BLOCK(troupe_net, caf::id_block::troupe_ring::end).
CAF_BEGIN_TYPE_ID_BLOCK(troupe_ring, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(troupe_ring, (troupe::image_piece))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_admit))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_queued))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_refused))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::step_plan))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::step_placed))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::step_ready))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::step_result))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::tokens_accepted))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_stopped))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::stream_paused))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::stream_resumed))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::client_gone))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_failed))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turn_ended))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::wiring))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::images_wanted))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::images_sent))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::epoch_begun))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::turns_resumed))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::fetch_resumed))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::drain_begin))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::scheduler_status))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::miss_question))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::miss_answer))
CAF_ADD_TYPE_ID(troupe_ring, (troupe::draft_limit))
CAF_ADD_ATOM(troupe_ring, troupe, status_atom, "status")
CAF_ADD_ATOM(troupe_ring, troupe, load_atom, "load")
CAF_ADD_ATOM(troupe_ring, troupe, due_atom, "due")
CAF_ADD_ATOM(troupe_ring, troupe, wiring_atom, "wiring")
CAF_ADD_ATOM(troupe_ring, troupe, end_atom, "end")
CAF_END_TYPE_ID_BLOCK(troupe_ring)

// These stay inside the front process: they carry a sink, or a request with everything a client sent.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::chat_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_open)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_begin)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_replayed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::text_question)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::text_answer)
