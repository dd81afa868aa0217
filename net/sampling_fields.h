// Sampling fields shared by chat and completions, with their ranges and messages. api.md 2.1.
#pragma once

#include "actors/messages.h"
#include "net/fields.h"
#include "net/request_facts.h"

namespace troupe {

// Fills sampling, stop, n, max_tokens, priority, cache_salt and truncation of `out`. Log-probabilities are read by the
// caller: their fields differ. `default_max_tokens`: -1 = what the context leaves.
void read_sampling(const field_reader& body, const request_facts&, int64_t default_max_tokens, chat_request& out);

// A seed for requests that name none.
uint64_t random_seed();

} // namespace troupe
