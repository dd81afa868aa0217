// Token ids of the model's answer in, reasoning, content and calls out, as they arrive. Spec: chat.md section 5.
#pragma once

#include "model/chat_types.h"
#include "model/deepseek_v41/call_block.h"
#include "model/deepseek_v41/chat.h"
#include "model/stop_strings.h"
#include "model/tokenizer.h"
#include "model/utf8_stream.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct parser_options {
  parser_start start = parser_start::content;
  bool tools_active = false;
  std::vector<chat_tool> tools;
  bool skip_special_tokens = true;
  bool parallel_tool_calls = true;
  std::vector<std::string> stop; // acts on content only
  bool include_stop = false;
  int32_t min_tokens = 0; // a stop string can only begin and end in tokens from this one on, counted from 1
  bool raw = false;       // completions: no reasoning and no calls, all text is content
};

// One turn's parser. The events of a whole answer, joined, do not depend on how its tokens were grouped.
class output_parser {
public:
  output_parser(std::shared_ptr<const tokenizer> tok, const marker_ids& markers, parser_options options);

  // Appends the events of one token. After done() tokens are discarded.
  void push(int32_t id, std::vector<output_event>& out);

  enum class ending : uint8_t { stop, length };
  // EOS or length: appends held text; EOS closes open calls, length leaves them as they are (chat.md 3.3).
  void finish(ending how, std::vector<output_event>& out);

  bool done() const { return state_ == state::done; } // the tool block closed or a stop string matched: stop generating
  std::optional<std::string> stop_match() const { return stop_.matched(); }
  int32_t n_calls() const { return block_.n_calls(); }
  bool in_reasoning() const { return state_ == state::reasoning; }
  uint64_t n_parse_errors() const { return block_.n_errors(); }
  uint64_t n_stray_markers() const { return n_stray_markers_; } // think markers in content

private:
  enum class state : uint8_t { reasoning, content, tools, done };
  void text(std::string_view text, event_sink& out);
  void prose(std::string_view text, event_sink& out);
  bool tag_character(char c, event_sink& out);
  void think_marker(int32_t id, event_sink& out);
  void dsml(event_sink& out);
  void release(event_sink& out);
  void emit(std::string_view text, event_sink& out);

  std::shared_ptr<const tokenizer> tok_; // shared with the other turns: it is immutable and large
  marker_ids markers_;
  parser_options options_;
  state state_ = state::content;
  utf8_stream utf8_;
  stop_strings stop_;
  call_block block_;
  std::string text_; // of the current token, kept to spare allocations
  // Reasoning and content with tools: at most two LF and a `<`, then perhaps the DSML marker and part of a tag name.
  std::string held_;
  size_t tag_at_ = 0; // where that name starts in held_; 0: no marker yet
  uint64_t n_stray_markers_ = 0;
  int32_t n_tokens_ = 0;
};

} // namespace troupe
