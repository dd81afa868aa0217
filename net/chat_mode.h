// Thinking on or off, and the effort number. chat.md 2.3, 2.4.
#pragma once

#include "actors/settings.h"
#include "net/fields.h"

#include <cstdint>

namespace troupe {

struct chat_mode {
  bool thinking = true;
  int32_t effort = 75;
  bool drop_thinking = true;
};
chat_mode read_chat_mode(const field_reader& body, const settings&);

} // namespace troupe
