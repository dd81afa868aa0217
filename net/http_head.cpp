// Header lines are short and few; they are appended as text.
#include "net/http_head.h"

#include "net/api_errors.h"

#include <string>

namespace troupe {
namespace {

void append_line(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  out += value;
  out += "\r\n";
}

void append_common(std::string& out, const answer_head& head) {
  append_line(out, "server", "troupe");
  append_line(out, "X-Request-Id", head.request_id);
  if (!head.origin.empty()) {
    append_line(out, "Access-Control-Allow-Origin", head.origin);
    append_line(out, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After, X-Queue-Position");
    if (head.origin != "*") append_line(out, "Vary", "Origin");
  }
  out += head.extra;
}

void append_status(std::string& out, int status) {
  out += "HTTP/1.1 ";
  out += std::to_string(status);
  out += ' ';
  out += reason_phrase(status);
  out += "\r\n";
}

} // namespace

std::string reply_head(const http_reply& reply, const answer_head& head) {
  std::string out;
  append_status(out, reply.status);
  append_common(out, head);
  for (const auto& [name, value] : reply.headers) append_line(out, name, value);
  if (reply.status == 204) {
    if (!head.origin.empty()) {
      append_line(out, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      append_line(out, "Access-Control-Allow-Headers",
                  head.cors_headers.empty() ? "Authorization, Content-Type, X-Request-Id" : head.cors_headers);
      append_line(out, "Access-Control-Max-Age", "86400");
    }
  } else {
    if (!reply.content_type.empty()) append_line(out, "Content-Type", reply.content_type);
    append_line(out, "Content-Length", std::to_string(reply.body.size()));
  }
  append_line(out, "Connection", head.keep_alive ? "keep-alive" : "close");
  return out + "\r\n";
}

std::string stream_head(const answer_head& head) {
  std::string out;
  append_status(out, 200);
  append_common(out, head);
  append_line(out, "Content-Type", "text/event-stream; charset=utf-8");
  append_line(out, "Cache-Control", "no-cache");
  append_line(out, "X-Accel-Buffering", "no");
  if (!head.is_http_1_0) append_line(out, "Transfer-Encoding", "chunked");
  append_line(out, "Connection", head.keep_alive ? "keep-alive" : "close");
  return out + "\r\n";
}

} // namespace troupe
