// A small machine over characters; values are the only long parts and are copied in runs.
#include "model/deepseek_v41/call_block.h"

#include "model/deepseek_v41/chat_constants.h"

#include <algorithm>
#include <array>

namespace troupe {
namespace {

constexpr std::string_view invoke_start = "invoke name=\"";
constexpr std::string_view parameter_start = "parameter name=\"";

struct tag {
  std::string_view text;
  tag_match is;
};
constexpr std::array<tag, 5> tags = {{{"calls>", tag_match::calls},
                                      {"tool_calls>", tag_match::calls},
                                      {"function_calls>", tag_match::calls},
                                      {invoke_start, tag_match::invoke},
                                      {parameter_start, tag_match::parameter}}};

std::string_view without_space(std::string_view text) {
  if (text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

} // namespace

tag_match match_opening_tag(std::string_view text) {
  text = without_space(text);
  tag_match best = tag_match::none;
  for (const tag& t : tags) {
    if (text.starts_with(t.text)) return t.is;
    if (t.text.starts_with(text)) best = tag_match::prefix;
  }
  return best;
}

void call_block::begin(std::string raw, bool in_invoke) {
  raw_ = std::move(raw);
  place_ = in_invoke ? place::opening : place::outside;
  tag_ = in_invoke ? invoke_start : std::string_view();
}

void call_block::text(std::string_view text, event_sink& out) {
  while (!text.empty() && !is_closed_) {
    if (place_ == place::value) {
      value(text, out);
    } else if (place_ == place::outside) {
      if (n_calls() == 0) raw_ += text;
      remember_bracket(text);
      return;
    } else {
      if (n_calls() == 0) raw_ += text[0];
      step(text[0], out);
      if (is_closed_ && n_calls() == 0 && text[0] != '>') raw_.pop_back(); // it only showed that the tag had ended
      text.remove_prefix(1);
    }
  }
}

void call_block::dsml(event_sink& out) {
  if (is_closed_) return;
  if (n_calls() == 0) raw_ += chat_text::dsml;
  switch (place_) {
  case place::opening: // the tag before never ended
    ++n_errors_;
    remember_bracket(tag_);
    place_ = place::outside;
    break;
  case place::closing: apply_closing(out); break;
  case place::value_opening: // not a tag after all
    calls_.value(std::string(1, '<').append(chat_text::dsml).append(tag_), out);
    place_ = place::value;
    break;
  default: break;
  }
  if (is_closed_) return;
  if (place_ == place::value && bracket_ != "</") { // only a new parameter ends a value without an end tag
    if (bracket_.empty())
      calls_.value(chat_text::dsml, out);
    else
      place_ = place::value_opening;
  } else if (bracket_ == "</") {
    if (place_ == place::value) calls_.end_parameter(out);
    place_ = place::closing;
  } else if (bracket_ == "<") {
    place_ = place::opening;
  }
  bracket_.clear();
  tag_.clear();
}

void call_block::remember_bracket(std::string_view text) {
  for (const char c : text.substr(text.size() - std::min<size_t>(text.size(), 2))) {
    if (c == '<')
      bracket_ = "<";
    else if (c == '/' && bracket_ == "<")
      bracket_ = "</";
    else
      bracket_.clear();
  }
}

void call_block::value(std::string_view& text, event_sink& out) {
  if (bracket_ == "<" && text[0] == '/') {
    bracket_ = "</";
    text.remove_prefix(1);
    return;
  }
  if (!bracket_.empty()) calls_.value(bracket_, out); // it led to no marker
  bracket_.clear();
  const size_t at = std::min(text.find('<'), text.size());
  if (at != 0) calls_.value(text.substr(0, at), out);
  text.remove_prefix(at);
  if (text.empty()) return;
  bracket_ = "<";
  text.remove_prefix(1);
}

void call_block::step(char c, event_sink& out) {
  switch (place_) {
  case place::opening: return opening(c, out);
  case place::closing: return closing(c, out);
  case place::value_opening: return value_opening(c, out);
  default: return remember_bracket({&c, 1});
  }
}

void call_block::opening(char c, event_sink& out) {
  tag_ += c;
  switch (match_opening_tag(tag_)) {
  case tag_match::prefix: break;
  case tag_match::calls: place_ = place::outside; break; // the outer tag once more
  case tag_match::invoke:
    if (c == '"' && without_space(tag_).size() > invoke_start.size()) open_call(out);
    break;
  case tag_match::parameter:
    if (c == '>') open_parameter(out);
    break;
  case tag_match::none:
    ++n_errors_;
    place_ = place::outside;
    remember_bracket({&c, 1});
    break;
  }
}

void call_block::open_call(event_sink& out) {
  std::string_view name = without_space(tag_).substr(invoke_start.size());
  name.remove_suffix(1);
  place_ = place::outside;
  if (calls_.is_open()) { // its end tag is missing
    ++n_errors_;
    calls_.close(out);
  }
  if (name.empty()) {
    ++n_errors_;
  } else if (!parallel_ && n_calls() > 0) {
    is_closed_ = true;
  } else {
    calls_.open(name, out);
    raw_.clear();
  }
}

// The tag is complete at `" string="true">` or `" string="false">`; a `>` after the quote without that is malformed,
// and the key is then what stands before the quote.
void call_block::open_parameter(event_sink& out) {
  constexpr std::string_view is_string = "\" string=\"true\">", is_json = "\" string=\"false\">";
  std::string_view key = without_space(tag_).substr(parameter_start.size());
  bool string = true;
  if (key.ends_with(is_string)) {
    key.remove_suffix(is_string.size());
  } else if (key.ends_with(is_json)) {
    key.remove_suffix(is_json.size());
    string = false;
  } else {
    const size_t quote = key.find('"');
    if (quote == key.npos) return; // the `>` belongs to the key
    ++n_errors_;
    key = key.substr(0, quote);
  }
  place_ = place::outside;
  if (!calls_.is_open()) {
    ++n_errors_;
    return;
  }
  calls_.begin_parameter(std::string(key), string, out);
  place_ = place::value;
}

void call_block::closing(char c, event_sink& out) {
  const bool is_name = (c >= 'a' && c <= 'z') || c == '_' || c == ' ';
  if (is_name && tag_.size() < 32) {
    tag_ += c;
    return;
  }
  apply_closing(out);
  if (!is_closed_) remember_bracket({&c, 1});
}

void call_block::apply_closing(event_sink& out) {
  std::string_view name = without_space(tag_);
  while (name.ends_with(' ')) name.remove_suffix(1);
  place_ = place::outside;
  if (name == "calls" || name == "tool_calls" || name == "function_calls") {
    if (calls_.is_open()) {
      ++n_errors_;
      calls_.close(out);
    }
    is_closed_ = true;
  } else if (name == "invoke") {
    if (calls_.is_open()) calls_.close(out);
    is_closed_ = !parallel_ && n_calls() > 0;
  } else if (name != "parameter") {
    ++n_errors_;
  }
}

void call_block::value_opening(char c, event_sink& out) {
  tag_ += c;
  const tag_match is = match_opening_tag(tag_);
  if (is == tag_match::prefix) return;
  if (is == tag_match::parameter) {
    ++n_errors_;
    calls_.end_parameter(out);
    place_ = place::opening;
    return;
  }
  tag_.pop_back();
  calls_.value(std::string(1, '<').append(chat_text::dsml).append(tag_), out);
  place_ = place::value;
  std::string_view rest{&c, 1};
  value(rest, out);
}

void call_block::finish(bool is_cut, event_sink& out) {
  if (is_closed_) return;
  if (place_ == place::closing) apply_closing(out); // the name may be complete without its `>`
  if (is_closed_) return;
  if (place_ == place::value_opening) calls_.value(std::string(1, '<').append(chat_text::dsml).append(tag_), out);
  if (place_ == place::value) calls_.value(bracket_, out);
  const bool in_value = place_ == place::value || place_ == place::value_opening;
  if (calls_.is_open() && is_cut) {
    calls_.cut(out);
  } else if (calls_.is_open()) {
    if (in_value) calls_.end_parameter(out);
    calls_.close(out);
  }
  ++n_errors_; // it has no end tag
  is_closed_ = true;
}

} // namespace troupe
