// `tools`, `tool_choice` and their legacy spellings -> chat_tool values. chat.md 2.7, 3.4; api.md 2.1.
#pragma once

#include "model/chat_types.h"
#include "net/fields.h"

#include <string>
#include <vector>

namespace troupe {

struct read_tools_result {
  std::vector<chat_tool> tools; // empty with choice none
  tool_choice choice = tool_choice::none;
  std::string named;
  bool parallel = true;
};
// `binding`: what the request asks for must be honoured. Then strict functions and forced choices, which need a grammar
// over the output, are refused: not supported yet. False for questions that run nothing.
read_tools_result read_tools(const field_reader& body, bool strict_openai, bool binding);

} // namespace troupe
