// A token's text is shown with U+FFFD where its bytes are no whole characters; `bytes` has them exactly (api.md 2.3).
#include "net/answer_text.h"

#include "net/json_text.h"
#include "net/sampling_fields.h"

namespace troupe {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

// Well-formed text from any bytes: each maximal ill-formed part becomes one U+FFFD.
std::string shown(std::string_view bytes) {
  if (is_well_formed_utf8(bytes)) return std::string(bytes);
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t n = 0; // the shortest whole character at i
    for (size_t k = 1; k <= 4 && i + k <= bytes.size() && !n; k++)
      if (is_well_formed_utf8(bytes.substr(i, k))) n = k;
    if (n) {
      out += bytes.substr(i, n);
      i += n;
      continue;
    }
    out += replacement;
    for (i++; i < bytes.size() && (static_cast<unsigned char>(bytes[i]) & 0xC0) == 0x80;) i++;
  }
  return out;
}

int64_t n_characters(std::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

std::string token_text(int32_t id, const answer_style& style, const request_facts& facts) {
  return style.tokens_as_ids ? "token_id:" + std::to_string(id) : shown(facts.token_bytes(id));
}

void append_entry(std::string& out, int32_t id, float logprob, const answer_style& style, const request_facts& facts) {
  out += "{\"token\":";
  append_json_string(out, token_text(id, style, facts));
  out += ",\"logprob\":";
  append_json_float(out, logprob);
  out += ",\"bytes\":[";
  bool first = true;
  for (const char c : facts.token_bytes(id)) {
    if (!first) out += ',';
    first = false;
    append_integer(out, static_cast<int>(static_cast<unsigned char>(c)));
  }
  out += ']';
}

} // namespace

void append_usage(std::string& out, const turn_usage& u) {
  out += "{\"prompt_tokens\":";
  append_integer(out, u.prompt_tokens);
  out += ",\"completion_tokens\":";
  append_integer(out, u.completion_tokens);
  out += ",\"total_tokens\":";
  append_integer(out, u.prompt_tokens + u.completion_tokens);
  out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_integer(out, u.cached_tokens);
  out += "},\"completion_tokens_details\":{\"reasoning_tokens\":";
  append_integer(out, u.reasoning_tokens);
  if (u.accepted_drafts + u.rejected_drafts > 0) { // absent, not zero, where nothing was drafted
    out += ",\"accepted_prediction_tokens\":";
    append_integer(out, u.accepted_drafts);
    out += ",\"rejected_prediction_tokens\":";
    append_integer(out, u.rejected_drafts);
  }
  out += "},\"prompt_cache_hit_tokens\":";
  append_integer(out, u.cached_tokens);
  out += ",\"prompt_cache_miss_tokens\":";
  append_integer(out, u.prompt_tokens - u.cached_tokens);
  out += '}';
}

std::string_view finish_reason(finish_cause c) {
  switch (c) {
  case finish_cause::length: return "length";
  case finish_cause::tool_calls: return "tool_calls";
  default: return "stop";
  }
}

void append_stop_reason(std::string& out, std::string_view stop_string, int32_t stop_token) {
  if (!stop_string.empty())
    append_json_string(out, stop_string);
  else if (stop_token >= 0)
    append_integer(out, stop_token);
  else
    out += "null";
}

void append_ids(std::string& out, std::span<const int32_t> ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); i++) {
    if (i) out += ',';
    append_integer(out, ids[i]);
  }
  out += ']';
}

void append_token_ids(std::string& out, std::span<const sampled_token> tokens, bool& first) {
  for (const auto& t : tokens) {
    if (!first) out += ',';
    first = false;
    append_integer(out, t.id);
  }
}

void append_chat_logprobs(std::string& out, std::span<const sampled_token> tokens, const answer_style& style,
                          const request_facts& facts, bool& first) {
  for (const auto& t : tokens) {
    if (!first) out += ',';
    first = false;
    append_entry(out, t.id, t.logprob, style, facts);
    out += ",\"top_logprobs\":[";
    for (size_t i = 0; i < t.best.size(); i++) {
      if (i) out += ',';
      append_entry(out, t.best[i].id, t.best[i].logprob, style, facts);
      out += '}';
    }
    out += "]}";
  }
}

void completion_logprobs::add(std::span<const sampled_token> tokens, const answer_style& style,
                              const request_facts& facts) {
  for (const auto& t : tokens) {
    if (!first_)
      for (auto* s : {&offsets_, &values_, &tokens_, &best_}) *s += ',';
    first_ = false;
    append_integer(offsets_, offset_);
    append_json_float(values_, t.logprob);
    append_json_string(tokens_, token_text(t.id, style, facts));
    best_ += '{';
    for (size_t i = 0; i < t.best.size(); i++) {
      if (i) best_ += ',';
      append_json_string(best_, token_text(t.best[i].id, style, facts));
      best_ += ':';
      append_json_float(best_, t.best[i].logprob);
    }
    best_ += '}';
    offset_ += n_characters(shown(facts.token_bytes(t.id)));
  }
}

void completion_logprobs::take(std::string& out) {
  out += "{\"text_offset\":[" + offsets_ + "],\"token_logprobs\":[" + values_ + "],\"tokens\":[" + tokens_ +
         "],\"top_logprobs\":[" + best_ + "]}";
  for (auto* s : {&offsets_, &values_, &tokens_, &best_}) s->clear();
  first_ = true;
}

std::string new_call_id() {
  static constexpr char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string id = "call_";
  for (int word = 0; word < 4; word++) {
    uint64_t bits = random_seed();
    for (int i = 0; i < 6; i++, bits /= 62) id += alphabet[bits % 62];
  }
  return id;
}

} // namespace troupe
