// The one place that sets up Beast's request parser; used by the session and by the HTTP fuzz target. Heavy to compile.
#pragma once

#include "net/api_errors.h"
#include "net/routes.h"

// Beast 1.81 asserts that a final chunk never comes in pieces of four bytes, which any client can send; without its
// assertions it parses them rightly. Found by the fuzzer (corpus: final-chunk-in-pieces). Before Boost's first header.
#define BOOST_DISABLE_ASSERTS

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstdint>

namespace troupe {

using request_parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

inline constexpr uint32_t max_head_bytes = 64 << 10;
inline constexpr size_t max_target_bytes = 8 << 10;

inline void set_limits(request_parser& parser, int64_t max_body_bytes) {
  parser.header_limit(max_head_bytes);
  parser.body_limit(static_cast<uint64_t>(max_body_bytes));
  parser.eager(false);
}

inline std::string_view to_view(boost::beast::string_view s) { return {s.data(), s.size()}; }

// Views into the parser. Precondition: the header is complete.
inline request_head to_head(const request_parser& parser) {
  namespace http = boost::beast::http;
  const auto& r = parser.get();
  request_head head;
  head.method = to_view(r.method_string());
  head.target = to_view(r.target());
  head.content_type = to_view(r[http::field::content_type]);
  head.authorization = to_view(r[http::field::authorization]);
  head.request_id = to_view(r["X-Request-Id"]);
  head.origin = to_view(r[http::field::origin]);
  head.has_body = !parser.is_done();
  return head;
}

// What HTTP itself forbids beyond what the parser refuses; status 0: nothing.
inline api_error check_head(const request_parser& parser) {
  namespace http = boost::beast::http;
  const auto& r = parser.get();
  if (r.target().size() > max_target_bytes) return make_error(414, "The request target is too long");
  if (r.version() == 11 && r.count(http::field::host) != 1)
    return make_error(400, "An HTTP/1.1 request needs exactly one Host header");
  if (r.version() != 10 && r.version() != 11) return make_error(400, "Only HTTP/1.0 and HTTP/1.1 are spoken here");
  api_error none;
  none.status = 0;
  return none;
}

// The answer to a parse error; status 0: a socket error, nothing can be answered.
inline api_error to_error(const boost::system::error_code& ec, int64_t max_body_bytes) {
  namespace http = boost::beast::http;
  if (ec == http::error::body_limit)
    return make_error(413, "The request body is larger than " + std::to_string(max_body_bytes) + " bytes");
  if (ec == http::error::header_limit) return make_error(431, "The request header is too large");
  if (ec == http::error::end_of_stream || ec == http::error::partial_message ||
      ec.category() != http::make_error_code(http::error::bad_method).category()) {
    api_error none;
    none.status = 0;
    return none;
  }
  return make_error(400, "Malformed HTTP request: " + ec.message());
}

} // namespace troupe
