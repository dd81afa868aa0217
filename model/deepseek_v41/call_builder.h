// Turns the parameters of a call into the `arguments` string of the API, fragment by fragment. Spec: chat.md 3.3, 5.5.
#pragma once

#include "model/chat_types.h"
#include "model/stop_strings.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// Where events go during one push: neighbours of one kind within it become one event.
class event_sink {
public:
  // `content` is asked for the text it still holds before the first call opens: content never follows a call.
  event_sink(std::vector<output_event>& out, stop_strings& content)
      : out_(out), first_(out.size()), content_(content) {}
  void text(output_event::kind what, std::string_view text, int32_t call_index = 0);
  void call(std::string_view name, int32_t call_index);

private:
  std::vector<output_event>& out_;
  size_t first_;
  stop_strings& content_;
};

class call_builder {
public:
  explicit call_builder(std::vector<chat_tool> tools) : tools_(std::move(tools)) {}
  call_builder(call_builder&&) = default; // not copied: `tool_` points into `tools_`

  // Precondition of the four below `open`: a call is open; of `value` and `end_parameter`: a parameter is too.
  void open(std::string_view name, event_sink& out);
  void begin_parameter(std::string key, bool is_string, event_sink& out);
  void value(std::string_view text, event_sink& out);
  void end_parameter(event_sink& out);
  void close(event_sink& out);
  // The output ended by length: what a complete parameter still held comes out, nothing is closed.
  void cut(event_sink& out);

  bool is_open() const { return is_open_; }
  int32_t n_calls() const { return n_calls_; }

private:
  enum class mode : uint8_t { none, stream, buffer, skip };
  parameter_type type_of(std::string_view key) const;
  bool is_wrapper(std::string_view value) const;
  bool has_only_known_keys(std::string_view object) const;
  void emit_key(std::string_view key);
  void emit_wrapped();
  void send(event_sink& out);

  std::vector<chat_tool> tools_;
  int32_t n_calls_ = 0;
  bool is_open_ = false;
  const chat_tool* tool_ = nullptr; // of the open call; nullptr: not declared
  std::vector<std::string> keys_;   // of the open call, to refuse duplicates
  bool has_emitted_ = false;        // a parameter of the open call is in the arguments
  mode mode_ = mode::none;
  bool is_string_ = false;
  std::string buffer_;   // raw text of a value that is not streamed
  std::string wrapped_;  // an object that may turn out to be all the arguments; empty: none
  std::string fragment_; // being built for the next event
};

} // namespace troupe
