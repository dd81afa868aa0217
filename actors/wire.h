// Which messages cross a wire, and their type ids. Included by messages.h alone.
#pragma once

#include "actors/messages.h"

#include <caf/error.hpp>
#include <caf/fwd.hpp>

// In the order of their type ids: a new one comes last.
// clang-format off
#define TROUPE_RING_MESSAGES(X)                                                                                        \
  X(image_piece) X(turn_admit) X(turn_queued) X(turn_refused) X(step_plan) X(step_placed) X(step_ready) X(step_result) \
  X(tokens_accepted) X(turn_stopped) X(stream_paused) X(stream_resumed) X(client_gone) X(turn_failed) X(turn_ended)    \
  X(wiring) X(images_wanted) X(images_sent) X(epoch_begun) X(turns_resumed) X(fetch_resumed) X(drain_begin)            \
  X(scheduler_status) X(miss_question) X(miss_answer) X(draft_limit) X(tokens_taken)
// clang-format on

namespace caf::detail {
class stringification_inspector; // what CAF prints a message with
}

namespace troupe {

// Declared for the three inspectors there are and defined in wire.cpp: as templates, every file that names a message
// would compile the fields of all that is in it again, for each of the three.
#define TROUPE_CROSSES(type)                                                                                           \
  caf::error inspect(caf::serializer&, type&);                                                                         \
  caf::error inspect(caf::deserializer&, type&);                                                                       \
  void inspect(caf::detail::stringification_inspector&, type&);
TROUPE_RING_MESSAGES(TROUPE_CROSSES)

} // namespace troupe

// net adds its own block behind this one: CAF_BEGIN_TYPE_ID_BLOCK(troupe_net, caf::id_block::troupe_ring::end).
CAF_BEGIN_TYPE_ID_BLOCK(troupe_ring, caf::first_custom_type_id)
#define TROUPE_NUMBERED(type) CAF_ADD_TYPE_ID(troupe_ring, (troupe::type))
TROUPE_RING_MESSAGES(TROUPE_NUMBERED)
#undef TROUPE_NUMBERED
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
