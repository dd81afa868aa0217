// Errors as answers.
#include "net/http_reply.h"

#include "net/api_errors.h"

namespace troupe {

http_reply to_reply(const api_error& e, bool openai_style) {
  http_reply r;
  r.status = e.status;
  r.body = error_body(e, openai_style);
  if (e.retry_after_s > 0) r.headers.emplace_back("Retry-After", std::to_string(e.retry_after_s));
  if (e.queue_position > 0) r.headers.emplace_back("X-Queue-Position", std::to_string(e.queue_position));
  if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

} // namespace troupe
