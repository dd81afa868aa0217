// A whole HTTP answer as values; the session writes it.
#pragma once

#include "actors/turn_sink.h"

#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct http_reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers; // besides those every answer has
};

http_reply to_reply(const api_error&, bool openai_style); // with Retry-After, X-Queue-Position and WWW-Authenticate

} // namespace troupe
