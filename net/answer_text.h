// Pieces that streamed and whole answers write alike: usage, log-probabilities, finish reasons, token ids.
#pragma once

#include "actors/turn_sink.h"
#include "net/openai_request.h"
#include "net/request_facts.h"

#include <span>
#include <string>

namespace troupe {

void append_usage(std::string& out, const turn_usage&);
std::string_view finish_reason(finish_cause);
// "stop_reason": the matched string, the matched id, or null.
void append_stop_reason(std::string& out, std::string_view stop_string, int32_t stop_token);
void append_ids(std::string& out, std::span<const int32_t> ids);                      // [1,2]
void append_token_ids(std::string& out, std::span<const sampled_token>, bool& first); // 1,2 (no brackets)
// Entries of {"content":[..]} in chat's form, separated by commas.
void append_chat_logprobs(std::string& out, std::span<const sampled_token>, const answer_style&, const request_facts&,
                          bool& first);

// Completions' form {text_offset, token_logprobs, tokens, top_logprobs}, gathered token by token.
class completion_logprobs {
public:
  void add(std::span<const sampled_token>, const answer_style&, const request_facts&);
  bool empty() const { return first_; }
  // Writes the object and forgets its entries; offsets go on counting.
  void take(std::string& out);

private:
  std::string offsets_, values_, tokens_, best_;
  bool first_ = true;
  int64_t offset_ = 0; // in characters of the text of the choice
};

// call_ and 24 random letters and digits. chat.md 3.3.
std::string new_call_id();

} // namespace troupe
