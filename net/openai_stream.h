// Deltas of one turn -> server-sent events of /v1/chat/completions and /v1/completions. Pure: appends to a string.
// Spec: api.md 2.4. The bytes that do not change within a stream are made once; a token costs a few appends.
#pragma once

#include "actors/turn_sink.h"
#include "net/answer_text.h"
#include "net/openai_request.h"
#include "net/request_facts.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class openai_stream {
public:
  // `facts` is shared with every request of the server.
  openai_stream(answer_style, std::shared_ptr<const request_facts> facts);
  // Role chunks, one for each choice.
  void append_open(std::string& out, std::span<const int32_t> prompt_ids);
  // Before append_open: the first chunk carries the prompt's text.
  void show_prompt(std::string_view text);
  // The event of one delta; after the last choice's end also the usage chunk and [DONE].
  void append(std::string& out, const turn_delta&);
  bool finished() const { return n_open_ == 0; }
  // An error event and [DONE].
  static void append_error(std::string& out, const api_error&, bool openai_style);

private:
  struct choice_state {
    std::string head; // up to the delta's first member
    completion_logprobs logprobs;
    bool ended = false;
  };
  void append_chat_delta(std::string& out, const turn_delta&);
  void append_tail(std::string& out, const turn_delta&, choice_state&, bool ends);
  bool is_silent(const turn_delta&) const;

  answer_style style_;
  std::shared_ptr<const request_facts> facts_; // see the constructor
  std::string common_;                         // data: {"id":..,"choices":[
  std::string plain_tail_;                     // what follows a delta when nothing rides with it
  std::string prompt_;                         // members about the prompt, written with the first chunk
  std::vector<choice_state> choices_;
  int32_t n_open_;
};

} // namespace troupe
