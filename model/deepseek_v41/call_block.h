// The inside of a tool block: markup in, calls out. Spec: chat.md 3.1, 3.2, 5.2.
#pragma once

#include "model/deepseek_v41/call_builder.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

// What the text after `<` and the DSML marker is so far.
enum class tag_match : uint8_t { none, prefix, calls, invoke, parameter };
// `invoke` and `parameter` match with the quote that opens their name; one leading space and the older spellings pass.
tag_match match_opening_tag(std::string_view text);

// Reads text and DSML markers alternately; a marker is syntax only as a token, never as text that spells it. Text
// outside of values that is no tag is skipped. Malformed markup is skipped too and counted, never an error.
class call_block {
public:
  call_block(std::vector<chat_tool> tools, bool parallel_calls) : calls_(std::move(tools)), parallel_(parallel_calls) {}

  // The block begins; `raw` is the text already seen of it. `in_invoke`: its outer tag is missing, an invoke tag's name
  // follows.
  void begin(std::string raw, bool in_invoke);
  void text(std::string_view text, event_sink& out);
  void dsml(event_sink& out);
  // The output ended: by itself (everything open is closed) or by length (it stays open, chat.md 3.3).
  void finish(bool is_cut, event_sink& out);

  bool is_closed() const { return is_closed_; } // the end tag was seen, or the one call allowed is complete
  int32_t n_calls() const { return calls_.n_calls(); }
  uint64_t n_errors() const { return n_errors_; }
  // The block's text when no call ever got a name: it goes back to the content.
  std::string take_raw() { return n_calls() == 0 ? std::exchange(raw_, {}) : std::string(); }

private:
  enum class place : uint8_t { outside, opening, closing, value, value_opening };
  void step(char c, event_sink& out);
  void opening(char c, event_sink& out);
  void closing(char c, event_sink& out);
  void value_opening(char c, event_sink& out);
  void value(std::string_view& text, event_sink& out);
  void open_call(event_sink& out);
  void open_parameter(event_sink& out);
  void apply_closing(event_sink& out);
  void remember_bracket(std::string_view text);

  call_builder calls_;
  bool parallel_;
  place place_ = place::outside;
  std::string raw_;     // all of the block until the first call opens
  std::string tag_;     // opening, closing, value_opening: the text after the marker
  std::string bracket_; // outside, value: "<" or "</" that ends the text so far, else empty; in a value it is held back
  bool is_closed_ = false;
  uint64_t n_errors_ = 0;
};

} // namespace troupe
