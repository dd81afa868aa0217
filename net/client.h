// A small blocking HTTP client for the verbs that talk to a running server: one request, one answer, one deadline.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace troupe {

struct client_answer {
  int status = 0;
  std::string body;
};

// `url`: "http://host:port" without a path. `api_key` empty: none is sent. Throws std::runtime_error naming the URL and
// what went wrong (refused, deadline, malformed answer).
client_answer http_get(const std::string& url, std::string_view path, const std::string& api_key,
                       std::chrono::milliseconds deadline);
client_answer http_post(const std::string& url, std::string_view path, std::string_view json,
                        const std::string& api_key, std::chrono::milliseconds deadline);

} // namespace troupe
