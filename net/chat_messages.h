// `messages` of a chat request -> chat_message values and image files. Roles, parts: chat.md 2.9, errors: section 6.
#pragma once

#include "actors/settings.h"
#include "model/chat_types.h"
#include "net/fields.h"

#include <string>
#include <vector>

namespace troupe {

struct read_messages_result {
  std::vector<chat_message> messages;
  std::vector<std::string> image_files; // encoded bytes, indexed by content_part::image
  bool ends_with_prefix = false;        // `prefix: true` on the last message
};
// `body` reads the request object. Problems go to body.problem(), with param "messages".
read_messages_result read_messages(const field_reader& body, const settings&);

} // namespace troupe
