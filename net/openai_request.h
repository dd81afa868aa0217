// Bodies of the OpenAI endpoints -> a chat_request for the actors and an answer_style for the writers.
// Spec: api.md 2.1, 3, 7. No socket, no actor: bytes in, values or a refusal out.
#pragma once

#include "actors/messages.h"
#include "net/json_tree.h"
#include "net/request_facts.h"

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

// How the answer of one request must look.
struct answer_style {
  bool is_chat = true;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool logprobs = false;
  bool token_ids = false, tokens_as_ids = false;   // return_token_ids, return_tokens_as_token_ids
  bool reasoning_content = true, reasoning = true; // names of the reasoning field; both off: not returned
  bool with_calls = false;                         // tools are active: empty content is null beside calls
  bool is_format_hint = false;                     // the response format went into the prompt as a hint
  int32_t n_choices = 1;
  std::string prefix_text; // chat with echo: the last message, in front of the answer
  std::string id;          // "chatcmpl-.." or "cmpl-.."
  std::string model;       // as the client wrote it
  std::string fingerprint;
  int64_t created = 0; // unix seconds
};

struct parsed_request {
  chat_request request;
  answer_style style;
};

// A refusal, or what was asked for.
template <class T> struct parsed {
  T value{};
  std::optional<api_error> refusal;
};

enum class request_use : uint8_t { run, render }; // render: validated, never run; constraints need not be honoured

// `request_id`: already chosen from the header, or empty: then the body's `request_id` or a new one.
parsed<parsed_request> parse_chat_request(std::string_view body, const request_facts&, std::string_view request_id,
                                          request_use = request_use::run);
parsed<parsed_request> parse_completion_request(std::string_view body, const request_facts&,
                                                std::string_view request_id, request_use = request_use::run);
// /tokenize and /detokenize.
parsed<text_question> parse_tokenize_request(std::string_view body, const request_facts&);
parsed<text_question> parse_detokenize_request(std::string_view body, const request_facts&);

// /abort: the request id.
parsed<std::string> parse_abort_request(std::string_view body);

// A client's X-Request-Id if it is well-formed ([A-Za-z0-9._:-]{1,128}), else empty.
std::string accepted_request_id(std::string_view header);
std::string new_request_id(); // 32 hex digits of a version 4 uuid

} // namespace troupe
