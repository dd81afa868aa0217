// The bytes in front of an answer's body: status line and headers. api.md section 0.
#pragma once

#include "actors/settings.h"
#include "net/http_reply.h"

#include <string>
#include <string_view>

namespace troupe {

// What the request's own head says about the answer's.
struct answer_head {
  std::string request_id;   // X-Request-Id of the answer
  std::string origin;       // allowed origin; empty: no CORS headers
  std::string cors_headers; // OPTIONS: what the browser asked to send, echoed
  std::string extra;        // further header lines, each ended by CRLF
  bool keep_alive = true;
  bool is_http_1_0 = false;
};

std::string reply_head(const http_reply&, const answer_head&);
// 200, text/event-stream, chunked (HTTP/1.0: until the connection closes).
std::string stream_head(const answer_head&);

} // namespace troupe
