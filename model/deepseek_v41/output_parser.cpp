// The outer machine: REASONING -> CONTENT -> TOOLS -> DONE, with as little held back as chat.md 5.2 allows.
#include "model/deepseek_v41/output_parser.h"

#include "model/deepseek_v41/chat_constants.h"

#include <utility>

namespace troupe {
namespace {

// Where the suffix begins that could come right before a tool block's first tag: up to two LF, then perhaps a `<`.
size_t hold_from(std::string_view text) {
  size_t at = text.size();
  if (at > 0 && text[at - 1] == '<') --at;
  for (int n = 0; n < 2 && at > 0 && text[at - 1] == '\n'; ++n) --at;
  return at;
}

} // namespace

output_parser::output_parser(std::shared_ptr<const tokenizer> tok, const marker_ids& markers, parser_options options)
    : tok_(std::move(tok)), markers_(markers), options_(std::move(options)),
      stop_(std::move(options_.stop), options_.include_stop),
      block_(std::move(options_.tools), options_.parallel_tool_calls) {
  markers_.suppressed = {}; // the sampler's, not needed here
  if (options_.raw) {
    options_.tools_active = false;
  } else if (options_.start == parser_start::reasoning) {
    state_ = state::reasoning;
  } else if (options_.start == parser_start::tools) {
    state_ = state::tools;
  }
}

void output_parser::push(int32_t id, std::vector<output_event>& out) {
  if (done()) return;
  ++n_tokens_;
  event_sink sink(out, stop_);
  if (!tok_->is_added(id)) {
    const std::string_view bytes = tok_->bytes(id);
    if (utf8_.is_empty() && tok_->is_whole_text(id)) return text(bytes, sink);
    text_.clear();
    utf8_.push(bytes, text_);
    return text(text_, sink);
  }
  if (id == markers_.eos || (options_.skip_special_tokens && tok_->is_special(id))) return;
  text_.clear();
  utf8_.finish(text_);
  text(text_, sink);
  const bool is_think = id == markers_.think_start || id == markers_.think_end;
  if (is_think && !options_.raw && (state_ == state::reasoning || state_ == state::content)) {
    think_marker(id, sink);
  } else if (id == markers_.dsml && !options_.raw && (options_.tools_active || state_ == state::tools)) {
    dsml(sink);
  } else {
    text(tok_->bytes(id), sink);
  }
}

void output_parser::text(std::string_view text, event_sink& out) {
  switch (state_) {
  case state::reasoning:
  case state::content:
    if (!options_.tools_active) return emit(text, out);
    if (held_.empty() && !text.empty() && text.back() != '\n' && text.back() != '<') return emit(text, out);
    return prose(text, out);
  case state::tools:
    block_.text(text, out);
    if (block_.is_closed()) state_ = state::done;
    return;
  case state::done: return;
  }
}

void output_parser::prose(std::string_view text, event_sink& out) {
  while (tag_at_ != 0 && !text.empty()) {
    const char c = text[0];
    if (tag_character(c, out)) {
      text.remove_prefix(1);
      if (state_ == state::tools) return this->text(text, out);
    }
    if (done()) return;
  }
  if (text.empty()) return;
  held_ += text;
  const size_t keep = hold_from(held_);
  if (keep == 0) return;
  emit(std::string_view(held_).substr(0, keep), out);
  held_.erase(0, keep);
}

// One more character of a tag name. False: it cannot be a tag, all that was held has become text, and `c` is still to
// be read.
bool output_parser::tag_character(char c, event_sink& out) {
  held_ += c;
  const tag_match is = match_opening_tag(std::string_view(held_).substr(tag_at_));
  if (is == tag_match::prefix) return true;
  if (is == tag_match::calls || is == tag_match::invoke) {
    block_.begin(std::exchange(held_, {}), is == tag_match::invoke);
    tag_at_ = 0;
    state_ = state::tools;
    return true;
  }
  held_.pop_back();
  release(out);
  return false;
}

void output_parser::think_marker(int32_t id, event_sink& out) {
  release(out);
  if (done()) return;
  if (state_ == state::content)
    ++n_stray_markers_;
  else if (id == markers_.think_end)
    state_ = state::content;
}

void output_parser::dsml(event_sink& out) {
  if (state_ == state::tools) {
    block_.dsml(out);
    if (block_.is_closed()) state_ = state::done;
    return;
  }
  if (tag_at_ != 0) release(out); // the marker before this one opened nothing
  if (done()) return;
  held_ += chat_text::dsml;
  if (held_.size() > chat_text::dsml.size() && held_[held_.size() - chat_text::dsml.size() - 1] == '<')
    tag_at_ = held_.size();
  else
    release(out);
}

void output_parser::release(event_sink& out) {
  emit(held_, out);
  held_.clear();
  tag_at_ = 0;
}

void output_parser::emit(std::string_view text, event_sink& out) {
  if (text.empty() || done()) return;
  if (state_ == state::reasoning) return out.text(output_event::kind::reasoning, text);
  if (stop_.is_idle() || n_tokens_ < options_.min_tokens) return out.text(output_event::kind::content, text);
  std::string passed;
  if (stop_.push(text, passed)) state_ = state::done;
  out.text(output_event::kind::content, passed);
}

void output_parser::finish(ending how, std::vector<output_event>& out) {
  event_sink sink(out, stop_);
  if (!done()) {
    std::string tail;
    utf8_.finish(tail);
    text(tail, sink);
  }
  if (state_ == state::tools) block_.finish(how == ending::length, sink);
  if (state_ == state::reasoning || state_ == state::content) release(sink);
  if (!stop_.matched() && n_calls() == 0) {
    state_ = state::content;
    emit(block_.take_raw(), sink);
    sink.text(output_event::kind::content, stop_.finish());
  }
  state_ = state::done;
}

} // namespace troupe
