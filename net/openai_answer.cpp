// Gathers each choice by itself, then writes the choices in order.
#include "net/openai_answer.h"

#include "net/json_text.h"

#include "storage/check.h"

namespace troupe {

openai_answer::openai_answer(answer_style style, std::shared_ptr<const request_facts> facts)
    : style_(std::move(style)), facts_(std::move(facts)), n_open_(style_.n_choices) {
  choices_.resize(static_cast<size_t>(style_.n_choices));
  for (auto& c : choices_) c.content = style_.prefix_text;
}

void openai_answer::open(std::span<const int32_t> prompt_ids) {
  prompt_ids_.assign(prompt_ids.begin(), prompt_ids.end());
}

void openai_answer::show_prompt(std::string_view text) { prompt_text_ = text; }

void openai_answer::add(const turn_delta& d) {
  TROUPE_CHECK(d.choice >= 0 && static_cast<size_t>(d.choice) < choices_.size(),
               "a delta belongs to a choice asked for");
  auto& c = choices_[static_cast<size_t>(d.choice)];
  if (c.ended) return;
  switch (d.what) {
  case turn_delta::kind::content: c.content += d.text; break;
  case turn_delta::kind::reasoning: c.reasoning += d.text; break;
  case turn_delta::kind::call: c.calls.push_back({new_call_id(), std::string(d.text), {}}); break;
  case turn_delta::kind::arguments:
    if (!c.calls.empty()) c.calls.back().arguments += d.text;
    break;
  case turn_delta::kind::end:
    c.ended = true;
    c.cause = d.cause;
    append_stop_reason(c.stop_reason, d.stop_string, d.stop_token);
    n_open_--;
  }
  if (style_.logprobs) {
    if (style_.is_chat)
      append_chat_logprobs(c.chat_logprobs, d.tokens, style_, *facts_, c.first_logprob);
    else
      c.text_logprobs.add(d.tokens, style_, *facts_);
  }
  if (style_.token_ids) append_token_ids(c.token_ids, d.tokens, c.first_id);
  usage_ = d.usage;
}

void openai_answer::append_message(std::string& out, const choice_state& c) const {
  out += "\"message\":{\"role\":\"assistant\",\"content\":";
  if (c.content.empty() && !c.calls.empty())
    out += "null";
  else
    append_json_string(out, c.content);
  out += ",\"refusal\":null";
  const auto append_reasoning = [&](bool wanted, const char* key) {
    if (!wanted) return;
    out += key;
    if (c.reasoning.empty())
      out += "null";
    else
      append_json_string(out, c.reasoning);
  };
  append_reasoning(style_.reasoning_content, ",\"reasoning_content\":");
  append_reasoning(style_.reasoning, ",\"reasoning\":");
  if (!c.calls.empty()) {
    out += ",\"tool_calls\":[";
    for (size_t i = 0; i < c.calls.size(); i++) {
      if (i) out += ',';
      out += "{\"id\":\"" + c.calls[i].id + "\",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(out, c.calls[i].name);
      out += ",\"arguments\":";
      append_json_string(out, c.calls[i].arguments);
      out += "}}";
    }
    out += ']';
  }
  out += '}';
}

void openai_answer::append_choice(std::string& out, const choice_state& c, size_t index) const {
  out += "{\"index\":";
  append_integer(out, index);
  out += ',';
  if (style_.is_chat) {
    append_message(out, c);
  } else {
    out += "\"text\":";
    append_json_string(out, c.content);
  }
  out += ",\"logprobs\":";
  if (!style_.logprobs) {
    out += "null";
  } else if (style_.is_chat) {
    out += "{\"content\":[" + c.chat_logprobs + "]}";
  } else {
    auto entries = c.text_logprobs;
    entries.take(out);
  }
  out += ",\"finish_reason\":\"";
  out += finish_reason(c.cause);
  out += "\",\"stop_reason\":" + c.stop_reason;
  if (!style_.is_chat) out += ",\"prompt_logprobs\":null";
  if (style_.token_ids) out += ",\"token_ids\":[" + c.token_ids + "]";
  if (!style_.is_chat && style_.token_ids) {
    out += ",\"prompt_token_ids\":";
    append_ids(out, prompt_ids_);
  }
  out += '}';
}

std::string openai_answer::body() const {
  TROUPE_CHECK(finished(), "a body is written once, when every choice has ended");
  std::string out = "{\"id\":";
  append_json_string(out, style_.id);
  out +=
      style_.is_chat ? ",\"object\":\"chat.completion\",\"created\":" : ",\"object\":\"text_completion\",\"created\":";
  append_integer(out, style_.created);
  out += ",\"model\":";
  append_json_string(out, style_.model);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices_.size(); i++) {
    if (i) out += ',';
    append_choice(out, choices_[i], i);
  }
  out += "],\"usage\":";
  append_usage(out, usage_);
  out += ",\"system_fingerprint\":";
  if (style_.fingerprint.empty())
    out += "null";
  else
    append_json_string(out, style_.fingerprint);
  if (style_.is_chat) {
    out += ",\"service_tier\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":";
    if (style_.token_ids)
      append_ids(out, prompt_ids_);
    else
      out += "null";
  }
  if (prompt_text_) {
    out += ",\"prompt_text\":";
    append_json_string(out, *prompt_text_);
  }
  out += ",\"kv_transfer_params\":null}";
  return out;
}

} // namespace troupe
