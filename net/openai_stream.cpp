// Chunk shapes as in the golden streams (sse_shapes.json).
#include "net/openai_stream.h"

#include "net/api_errors.h"
#include "net/json_text.h"
#include "net/sse.h"

#include "storage/check.h"

namespace troupe {

openai_stream::openai_stream(answer_style style, std::shared_ptr<const request_facts> facts)
    : style_(std::move(style)), facts_(std::move(facts)), n_open_(style_.n_choices) {
  common_ = sse::data;
  common_ += "{\"id\":";
  append_json_string(common_, style_.id);
  common_ += style_.is_chat ? ",\"object\":\"chat.completion.chunk\",\"created\":"
                            : ",\"object\":\"text_completion\",\"created\":";
  append_integer(common_, style_.created);
  common_ += ",\"model\":";
  append_json_string(common_, style_.model);
  common_ += ",\"choices\":[";
  choices_.resize(static_cast<size_t>(style_.n_choices));
  for (size_t i = 0; i < choices_.size(); i++) {
    auto& head = choices_[i].head;
    head = common_ + "{\"index\":";
    append_integer(head, i);
    head += style_.is_chat ? ",\"delta\":{" : ",\"text\":";
  }
  plain_tail_ = style_.is_chat ? "},\"logprobs\":null,\"finish_reason\":null}]"
                               : ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]";
  plain_tail_ += style_.include_usage ? ",\"usage\":null}\n\n" : "}\n\n";
}

void openai_stream::append_open(std::string& out, std::span<const int32_t> prompt_ids) {
  if (style_.token_ids) {
    prompt_ += ",\"prompt_token_ids\":";
    append_ids(prompt_, prompt_ids);
  }
  if (!style_.is_chat) return;
  for (size_t i = 0; i < choices_.size(); i++) {
    out += choices_[i].head;
    out += "\"role\":\"assistant\",\"content\":\"\"";
    if (i == 0 && !prompt_.empty()) {
      out.append(plain_tail_, 0, plain_tail_.size() - 3); // without "}\n\n"
      out += prompt_ + "}\n\n";
    } else {
      out += plain_tail_;
    }
    if (style_.prefix_text.empty()) continue;
    out += choices_[i].head;
    out += "\"content\":";
    append_json_string(out, style_.prefix_text);
    out += plain_tail_;
  }
  prompt_.clear();
}

void openai_stream::show_prompt(std::string_view text) {
  prompt_ += ",\"prompt_text\":";
  append_json_string(prompt_, text);
}

// Nothing of this delta may be seen: no text, and its tokens were not asked for.
bool openai_stream::is_silent(const turn_delta& d) const {
  if (d.what == turn_delta::kind::end || d.what == turn_delta::kind::call) return false;
  if (!d.tokens.empty() && (style_.token_ids || style_.logprobs)) return false;
  if (d.what == turn_delta::kind::reasoning && !style_.reasoning && !style_.reasoning_content) return true;
  return d.text.empty();
}

void openai_stream::append_chat_delta(std::string& out, const turn_delta& d) {
  switch (d.what) {
  case turn_delta::kind::content:
    if (d.text.empty()) break;
    out += "\"content\":";
    append_json_string(out, d.text);
    break;
  case turn_delta::kind::reasoning: {
    if (d.text.empty()) break;
    const size_t start = out.size();
    if (style_.reasoning_content) {
      out += "\"reasoning_content\":";
      append_json_string(out, d.text);
    }
    if (style_.reasoning) {
      if (out.size() > start) out += ',';
      out += "\"reasoning\":";
      append_json_string(out, d.text);
    }
    break;
  }
  case turn_delta::kind::call:
    out += "\"tool_calls\":[{\"index\":";
    append_integer(out, d.call_index);
    out += ",\"id\":\"" + new_call_id() + "\",\"type\":\"function\",\"function\":{\"name\":";
    append_json_string(out, d.text);
    out += ",\"arguments\":\"\"}}]";
    break;
  case turn_delta::kind::arguments:
    out += "\"tool_calls\":[{\"index\":";
    append_integer(out, d.call_index);
    out += ",\"function\":{\"arguments\":";
    append_json_string(out, d.text);
    out += "}}]";
    break;
  case turn_delta::kind::end: break;
  }
}

void openai_stream::append_tail(std::string& out, const turn_delta& d, choice_state& choice, bool ends) {
  const bool rides = !d.tokens.empty() && (style_.logprobs || style_.token_ids);
  if (!rides && !ends && !style_.continuous_usage && prompt_.empty()) {
    out += plain_tail_;
    return;
  }
  out += style_.is_chat ? "},\"logprobs\":" : ",\"logprobs\":";
  if (style_.logprobs && !d.tokens.empty()) {
    bool first = true;
    if (style_.is_chat) {
      out += "{\"content\":[";
      append_chat_logprobs(out, d.tokens, style_, *facts_, first);
      out += "]}";
    } else {
      choice.logprobs.add(d.tokens, style_, *facts_);
      choice.logprobs.take(out);
    }
  } else {
    out += "null";
  }
  out += ",\"finish_reason\":";
  if (ends) {
    out += '"';
    out += finish_reason(d.cause);
    out += '"';
  } else {
    out += "null";
  }
  if (ends || !style_.is_chat) {
    out += ",\"stop_reason\":";
    append_stop_reason(out, d.stop_string, d.stop_token);
  }
  if (style_.token_ids) {
    bool first = true;
    out += ",\"token_ids\":[";
    append_token_ids(out, d.tokens, first);
    out += ']';
  }
  out += prompt_;
  prompt_.clear();
  out += "}]";
  if (style_.continuous_usage) {
    out += ",\"usage\":";
    append_usage(out, d.usage);
  } else if (style_.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void openai_stream::append(std::string& out, const turn_delta& d) {
  TROUPE_CHECK(d.choice >= 0 && static_cast<size_t>(d.choice) < choices_.size(),
               "a delta belongs to a choice asked for");
  auto& choice = choices_[static_cast<size_t>(d.choice)];
  if (choice.ended || is_silent(d)) return;
  const bool ends = d.what == turn_delta::kind::end;
  out += choice.head;
  if (style_.is_chat)
    append_chat_delta(out, d);
  else
    append_json_string(out, d.what == turn_delta::kind::content ? d.text : std::string_view());
  append_tail(out, d, choice, ends);
  if (!ends) return;
  choice.ended = true;
  if (--n_open_ > 0) return;
  if (style_.include_usage) {
    out += common_;
    out += "],\"usage\":";
    append_usage(out, d.usage);
    out += "}\n\n";
  }
  out += sse::done;
}

void openai_stream::append_error(std::string& out, const api_error& e, bool openai_style) {
  out += sse::data;
  append_error_body(out, e, openai_style);
  out += sse::end;
  out += sse::done;
}

} // namespace troupe
