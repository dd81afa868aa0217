// Tool calls in assistant history, and the qualified names they share with tool declarations. chat.md 2.7, 2.8.
#pragma once

#include "model/chat_types.h"
#include "net/fields.h"

#include <string>
#include <vector>

namespace troupe {

// `tool_calls` (or the legacy `function_call`) of one assistant message. `message` reads the message object.
std::vector<history_call> read_history_calls(const field_reader& message);

// Name and namespace of a tool or a call: "ns::name". The namespace may stand beside or inside `function`, as a string
// or as {name, description}.
struct qualified_name {
  std::string name;        // empty: refused, the problem is recorded
  std::string description; // of the namespace
};
qualified_name read_qualified_name(const field_reader& outer, const field_reader& function);

} // namespace troupe
