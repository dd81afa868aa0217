// One table of statuses.
#include "net/api_errors.h"

#include "net/json_text.h"

namespace troupe {
namespace {

struct status_row {
  int status;
  std::string_view phrase, type, openai_type;
};
constexpr status_row status_rows[] = {
    {200, "OK", "", ""},
    {204, "No Content", "", ""},
    {400, "Bad Request", "BadRequestError", "invalid_request_error"},
    {401, "Unauthorized", "AuthenticationError", "invalid_request_error"},
    {404, "Not Found", "NotFoundError", "invalid_request_error"},
    {405, "Method Not Allowed", "MethodNotAllowedError", "invalid_request_error"},
    {408, "Request Timeout", "RequestTimeoutError", "invalid_request_error"},
    {413, "Payload Too Large", "PayloadTooLargeError", "invalid_request_error"},
    {414, "URI Too Long", "URITooLongError", "invalid_request_error"},
    {415, "Unsupported Media Type", "UnsupportedMediaTypeError", "invalid_request_error"},
    {429, "Too Many Requests", "RateLimitError", "requests"},
    {431, "Request Header Fields Too Large", "RequestHeaderFieldsTooLargeError", "invalid_request_error"},
    {499, "Client Closed Request", "ClientClosedRequestError", "invalid_request_error"},
    {500, "Internal Server Error", "InternalServerError", "server_error"},
    {501, "Not Implemented", "NotImplementedError", "invalid_request_error"},
    {503, "Service Unavailable", "ServiceUnavailableError", "server_error"},
};

const status_row& row_of(int status) {
  static constexpr status_row unknown{0, "Unknown", "Error", "server_error"};
  for (const auto& r : status_rows)
    if (r.status == status) return r;
  return unknown;
}

// OpenAI's `code`: a string or null.
std::string_view openai_code(const api_error& e) {
  if (e.status == 401) return "invalid_api_key";
  if (e.status == 404 && e.param == "model") return "model_not_found";
  if (e.status == 429) return "rate_limit_exceeded";
  if (e.status == 400 && e.message.find("maximum context length") != std::string::npos)
    return "context_length_exceeded";
  return {};
}

} // namespace

std::string_view reason_phrase(int status) { return row_of(status).phrase; }
std::string_view error_type(int status) { return row_of(status).type; }

api_error make_error(int status, std::string message, std::string param, int32_t retry_after_s) {
  return {status, std::string(error_type(status)), std::move(message), std::move(param), retry_after_s};
}

void append_error_body(std::string& out, const api_error& e, bool openai_style) {
  out += "{\"error\":{\"message\":";
  append_json_string(out, e.message);
  out += ",\"type\":";
  append_json_string(out, openai_style     ? row_of(e.status).openai_type
                          : e.type.empty() ? error_type(e.status)
                                           : std::string_view(e.type));
  out += ",\"param\":";
  if (e.param.empty())
    out += "null";
  else
    append_json_string(out, e.param);
  out += ",\"code\":";
  const auto code = openai_code(e);
  if (!openai_style)
    append_integer(out, e.status);
  else if (code.empty())
    out += "null";
  else
    append_json_string(out, code);
  out += "}}";
}

std::string error_body(const api_error& e, bool openai_style) {
  std::string out;
  append_error_body(out, e, openai_style);
  return out;
}

} // namespace troupe
