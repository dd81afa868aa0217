// Deltas of one turn -> the whole body of a non-streamed answer: the concatenation of what a stream would have sent.
// Spec: api.md 2.3, section 3.
#pragma once

#include "actors/turn_sink.h"
#include "net/answer_text.h"
#include "net/openai_request.h"
#include "net/request_facts.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class openai_answer {
public:
  // `facts` is shared with every request of the server.
  openai_answer(answer_style, std::shared_ptr<const request_facts> facts);
  void open(std::span<const int32_t> prompt_ids);
  void show_prompt(std::string_view text); // before open: the body carries the prompt's text
  void add(const turn_delta&);
  bool finished() const { return n_open_ == 0; }
  std::string body() const; // Precondition: finished()

private:
  struct call {
    std::string id, name, arguments;
  };
  struct choice_state {
    std::string content, reasoning;
    std::vector<call> calls;
    std::string chat_logprobs, token_ids;
    completion_logprobs text_logprobs;
    std::string stop_reason;
    finish_cause cause = finish_cause::stop;
    bool first_logprob = true, first_id = true, ended = false;
  };
  void append_message(std::string& out, const choice_state&) const;
  void append_choice(std::string& out, const choice_state&, size_t index) const;

  answer_style style_;
  std::shared_ptr<const request_facts> facts_; // see the constructor
  std::vector<choice_state> choices_;
  std::vector<int32_t> prompt_ids_;
  std::optional<std::string> prompt_text_;
  turn_usage usage_;
  int32_t n_open_;
};

} // namespace troupe
