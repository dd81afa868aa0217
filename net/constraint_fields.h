// Fields that would bind the output or need an engine part that does not exist yet: each is a clear refusal, never
// ignored. The one thing honoured is the response-format hint in the prompt. api.md 2.1, 2.7; chat.md 2.10.
#pragma once

#include "net/fields.h"

#include <string>

namespace troupe {

// Python-style JSON for chat_input::response_format; empty: none asked for. `binding` as in read_tools; `hint_on`: the
// server writes hints, otherwise a JSON format is refused.
std::string read_response_format(const field_reader& body, bool hint_on, bool binding);
// structured_outputs, guided_*, budgets, beam search, prompt_logprobs, templates from clients, ...
void refuse_unsupported(const field_reader& body);

} // namespace troupe
