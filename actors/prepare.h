// From a request to token ids: renders, tokenises, decodes images, checks lengths. Runs nothing on the model.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"
#include "actors/settings.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <memory>
#include <string>
#include <vector>

namespace troupe {

// request -> prepare.
struct turn_prepare {
  chat_request request;
  bool is_again = false; // of a turn that was let in: its images are made once more, and no limit refuses it now
};
// prepare -> request: what the scheduler, fan_out and the ranks need of it.
struct turn_prepared {
  api_error failure{0, {}, {}, {}, 0}; // status 0: none
  chat_request request;
  struct prompt {
    std::vector<int32_t> ids; // image placeholders expanded
    std::vector<image_place> images;
    std::string text;     // completions with echo
    std::string rendered; // where the request wants the prompt's text
    int64_t max_tokens = 0;
  };
  std::vector<prompt> prompts;       // one; completions: one or more
  std::vector<planned_image> images; // indexed by image_place::image
  parser_start start = parser_start::content;
};

// client_gone: of a turn or a question (`request.turn` names both): if it still waits, no work is done for it.
using prepare_actor = caf::typed_actor<caf::replies_to<text_question>::with<text_answer>,
                                       caf::replies_to<turn_prepare>::with<turn_prepared>, caf::reacts_to<client_gone>>;

struct prepare_config {
  settings values;
  model_info info;
  int64_t max_context = 0;
  std::shared_ptr<counters> numbers = nullptr; // also held by net; null: nobody looks
};

// A crew of `n_threads` actors behind one handle, each of which gets the next work when it is idle; 0: the handle
// itself does the work (tests). What waits is bounded: turns by refuse_early() of queue_limit.h, questions by
// max_queue; one more gets 429. Turns that are prepared again are as many as were let in.
// One of the crew that dies costs its request a 500 and is replaced. If the desk dies that hands out the work, what it
// held gets 503, and the handle stays good: there is another desk.
prepare_actor spawn_prepare(caf::actor_system&, const prepare_config&, std::shared_ptr<const text_side>,
                            int32_t n_threads, bool detached = true);

} // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_prepare)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_prepared)
