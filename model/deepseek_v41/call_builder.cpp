// Values that are strings for certain are streamed; all others wait for their end, when their text decides.
#include "model/deepseek_v41/call_builder.h"

#include "model/deepseek_v41/json_text.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

bool is_of_type(json_kind kind, parameter_type type) {
  switch (type) {
  case parameter_type::any: return kind != json_kind::invalid;
  case parameter_type::string: return kind == json_kind::string;
  case parameter_type::integer: return kind == json_kind::integer;
  case parameter_type::number: return kind == json_kind::integer || kind == json_kind::number;
  case parameter_type::boolean: return kind == json_kind::boolean;
  case parameter_type::object: return kind == json_kind::object;
  case parameter_type::array: return kind == json_kind::array;
  case parameter_type::null: return kind == json_kind::null;
  }
  return false;
}

} // namespace

void event_sink::text(output_event::kind what, std::string_view text, int32_t call_index) {
  if (text.empty()) return;
  if (out_.size() > first_ && out_.back().what == what && out_.back().call_index == call_index) {
    out_.back().text += text;
    return;
  }
  out_.push_back({what, std::string(text), call_index});
}

void event_sink::call(std::string_view name, int32_t call_index) {
  if (call_index == 0) text(output_event::kind::content, content_.finish());
  out_.push_back({output_event::kind::call, std::string(name), call_index});
}

void call_builder::open(std::string_view name, event_sink& out) {
  out.call(name, n_calls_++);
  is_open_ = true;
  has_emitted_ = false;
  keys_.clear();
  wrapped_.clear();
  mode_ = mode::none;
  const auto it = std::find_if(tools_.begin(), tools_.end(), [&](const chat_tool& t) { return t.name == name; });
  tool_ = it == tools_.end() ? nullptr : &*it;
}

parameter_type call_builder::type_of(std::string_view key) const {
  if (tool_ != nullptr)
    for (const auto& [name, type] : tool_->parameters)
      if (name == key) return type;
  return parameter_type::any;
}

void call_builder::begin_parameter(std::string key, bool is_string, event_sink& out) {
  if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) { // a stream cannot be taken back: the first stands
    mode_ = mode::skip;
    return;
  }
  emit_wrapped();
  const parameter_type type = type_of(key);
  is_string_ = is_string;
  buffer_.clear();
  keys_.push_back(std::move(key));
  const bool streams = is_string && (type == parameter_type::any || type == parameter_type::string);
  mode_ = streams ? mode::stream : mode::buffer;
  if (streams) {
    emit_key(keys_.back());
    fragment_ += '"';
  }
  send(out);
}

void call_builder::value(std::string_view text, event_sink& out) {
  if (mode_ == mode::buffer) buffer_ += text;
  if (mode_ != mode::stream) return;
  append_json_escaped(fragment_, text);
  send(out);
}

void call_builder::end_parameter(event_sink& out) {
  const mode ended = std::exchange(mode_, mode::none);
  if (ended == mode::stream) fragment_ += '"';
  if (ended == mode::buffer) {
    const parameter_type type = type_of(keys_.back());
    const json_kind kind = kind_of_json(buffer_);
    const std::string_view trimmed = trim_json(buffer_);
    // A declared type overrules the model's string flag where the text fits it; a declared string takes any text.
    const bool is_json =
        is_string_ || type == parameter_type::string ? is_of_type(kind, type) : kind != json_kind::invalid;
    if (is_json && !is_string_ && kind == json_kind::object && is_wrapper(keys_.back())) {
      wrapped_ = trimmed;
      return;
    }
    emit_key(keys_.back());
    if (is_json) {
      fragment_ += trimmed;
    } else {
      fragment_ += '"';
      append_json_escaped(fragment_, buffer_);
      fragment_ += '"';
    }
  }
  send(out);
}

void call_builder::close(event_sink& out) {
  if (!wrapped_.empty() && has_only_known_keys(wrapped_)) {
    fragment_ += std::exchange(wrapped_, {});
  } else {
    emit_wrapped();
    fragment_ += has_emitted_ ? "}" : "{}";
  }
  send(out);
  is_open_ = false;
}

void call_builder::cut(event_sink& out) {
  emit_wrapped();
  send(out);
  is_open_ = false;
}

bool call_builder::is_wrapper(std::string_view key) const {
  if (keys_.size() != 1 || tool_ == nullptr || (key != "arguments" && key != "input")) return false;
  return std::none_of(tool_->parameters.begin(), tool_->parameters.end(),
                      [&](const auto& parameter) { return parameter.first == key; });
}

bool call_builder::has_only_known_keys(std::string_view object) const {
  const auto keys = keys_of_json(object);
  return std::all_of(keys.begin(), keys.end(), [&](std::string_view key) {
    return std::any_of(tool_->parameters.begin(), tool_->parameters.end(),
                       [&](const auto& parameter) { return parameter.first == key; });
  });
}

void call_builder::emit_key(std::string_view key) {
  fragment_ += has_emitted_ ? ", \"" : "{\"";
  append_json_escaped(fragment_, key);
  fragment_ += "\": ";
  has_emitted_ = true;
}

// Another parameter follows the wrapper, or its keys are foreign: it was an ordinary parameter.
void call_builder::emit_wrapped() {
  if (wrapped_.empty()) return;
  emit_key(keys_.front());
  fragment_ += std::exchange(wrapped_, {});
}

void call_builder::send(event_sink& out) {
  out.text(output_event::kind::arguments, fragment_, n_calls_ - 1);
  fragment_.clear();
}

} // namespace troupe
