// Rendering in two passes: messages become turns (merging, tool results in call order), turns become spans.
#include "model/deepseek_v41/chat.h"

#include "model/deepseek_v41/chat_constants.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

// A message of the prompt after merging: a user turn holds blocks of several messages.
struct block {
  std::vector<content_part> parts; // joined by a blank line
  bool is_tool_result = false;
  std::string tool_call_id;
};
struct turn {
  chat_role role = chat_role::user;      // never tool
  const chat_message* message = nullptr; // nullptr: an inserted empty system message
  std::vector<block> blocks;             // user only
  std::string_view task;
};

std::string_view task_token(std::string_view task) {
  for (const auto& [name, token] : chat_text::tasks)
    if (name == task) return token;
  return {};
}

void refuse_image_marker(std::string_view text, const std::string& where, const char* param) {
  if (text.find(chat_text::image) != text.npos)
    throw chat_error(where + " contains the text " + std::string(chat_text::image) +
                         ", which stands for an image and must not appear in text",
                     param);
}

void check(const chat_input& in) {
  if (in.messages.empty()) throw chat_error("messages must not be empty", "messages");
  for (size_t i = 0; i < in.messages.size(); ++i) {
    const chat_message& m = in.messages[i];
    const std::string where = "messages[" + std::to_string(i) + "]";
    const bool may_show = m.role == chat_role::user || m.role == chat_role::tool;
    for (const content_part& p : m.parts) {
      if (p.image >= 0 && !may_show)
        throw chat_error(where + ": images are allowed in user and tool messages only", "messages");
      refuse_image_marker(p.text, where, "messages");
    }
    refuse_image_marker(m.reasoning, where, "messages");
    for (const history_call& c : m.calls) {
      refuse_image_marker(c.name, where, "messages");
      for (const call_argument& a : c.arguments) {
        refuse_image_marker(a.key, where, "messages");
        refuse_image_marker(a.value, where, "messages");
      }
    }
    if (!m.task.empty() && task_token(m.task).empty())
      throw chat_error(where + ": unknown task '" + m.task + "'", "messages");
  }
  for (const chat_tool& t : in.tools) refuse_image_marker(t.schema_line, "tool '" + t.name + "'", "tools");
  refuse_image_marker(in.response_format, "response_format", "response_format");
  if (in.continue_final_message && in.messages.back().role != chat_role::assistant)
    throw chat_error("continue_final_message needs an assistant message at the end", "continue_final_message");
}

// chat.md 2.6, rules 1 and 2.
std::vector<turn> to_turns(const chat_input& in) {
  std::vector<turn> turns;
  const bool has_appendix = !in.tools.empty() || !in.response_format.empty();
  if (has_appendix && in.messages.front().role != chat_role::system)
    turns.push_back({chat_role::system, nullptr, {}, {}});
  for (const chat_message& m : in.messages) {
    if (m.role != chat_role::user && m.role != chat_role::tool) {
      turns.push_back({m.role, &m, {}, m.task});
      continue;
    }
    const bool is_tool = m.role == chat_role::tool;
    const bool merges =
        !turns.empty() && turns.back().role == chat_role::user && (is_tool || turns.back().task.empty());
    if (!merges) turns.push_back({chat_role::user, &m, {}, {}});
    turns.back().blocks.push_back({m.parts, is_tool, m.tool_call_id});
    if (!m.task.empty()) turns.back().task = m.task;
  }
  return turns;
}

// chat.md 2.6, rule 3: results stand in the order of the calls; the places among other blocks stay.
void sort_tool_results(std::vector<turn>& turns) {
  std::map<std::string_view, size_t> order; // call id -> its place in the last message with calls
  for (turn& t : turns) {
    if (t.role == chat_role::assistant && !t.message->calls.empty()) {
      order.clear();
      for (size_t i = 0; i < t.message->calls.size(); ++i)
        if (!t.message->calls[i].id.empty()) order[t.message->calls[i].id] = i;
    }
    if (order.empty()) continue;
    std::vector<size_t> places;
    std::vector<block> results;
    for (size_t i = 0; i < t.blocks.size(); ++i)
      if (t.blocks[i].is_tool_result) places.push_back(i), results.push_back(t.blocks[i]);
    const auto place = [&](const block& b) {
      const auto it = order.find(b.tool_call_id);
      return it == order.end() ? size_t{0} : it->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const block& a, const block& b) { return place(a) < place(b); });
    for (size_t i = 0; i < places.size(); ++i) t.blocks[places[i]] = std::move(results[i]);
  }
}

class renderer {
public:
  renderer(const chat_input& in, std::vector<turn> turns) : in_(in), turns_(std::move(turns)) {
    for (size_t i = 0; i < turns_.size(); ++i)
      if (is_user_like(i)) last_user_like_ = static_cast<std::ptrdiff_t>(i);
    drops_ = in.drop_thinking && in.tools.empty();
  }

  rendered_prompt render() {
    marker(chat_text::bos);
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (i == 0 && in_.thinking && turns_[0].role != chat_role::system) marker(chat_text::system), effort();
      message(i);
      transition(i);
    }
    if (in_.add_generation_prompt && !in_.continue_final_message && !has_open_header()) header(in_.thinking);
    const bool is_forced = in_.choice == tool_choice::required || in_.choice == tool_choice::named;
    if (is_forced && ends_with_header_ && !in_.thinking) {
      marker(chat_text::joiner), marker(chat_text::calls_open);
      out_.start = parser_start::tools;
    }
    return std::move(out_);
  }

private:
  bool is_user_like(size_t i) const {
    return turns_[i].role == chat_role::user || (turns_[i].role == chat_role::system && i > 0);
  }
  bool shows_reasoning(size_t i) const { return !drops_ || static_cast<std::ptrdiff_t>(i) >= last_user_like_; }

  // Reminders at the end stand inside the model's turn when the message before them opened it.
  bool has_open_header() const {
    if (!turns_.back().task.empty()) return true;
    size_t i = turns_.size() - 1;
    while (i > 0 && turns_[i].role == chat_role::latest_reminder) --i;
    return is_user_like(i);
  }

  void marker(std::string_view text) { add(text, true); }
  void content(std::string_view text) { add(text, false); }
  void add(std::string_view text, bool is_marker) {
    if (text.empty()) return;
    ends_with_header_ = false;
    if (out_.spans.empty() || out_.spans.back().is_marker != is_marker) out_.spans.push_back({{}, is_marker});
    out_.spans.back().text += text;
  }

  void effort() {
    marker(chat_text::effort_prefix), marker(std::to_string(in_.effort)), marker(chat_text::effort_suffix);
  }

  void header(bool opens_thinking) {
    marker(chat_text::assistant), marker(opens_thinking ? chat_text::think_start : chat_text::think_end);
    out_.start = opens_thinking ? parser_start::reasoning : parser_start::content;
    ends_with_header_ = true;
  }

  void parts(const std::vector<content_part>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) content(chat_text::joiner);
      if (list[i].image < 0) {
        content(list[i].text);
      } else {
        marker(chat_text::image);
        out_.images.push_back(list[i].image);
      }
    }
  }

  void message(size_t i) {
    const turn& t = turns_[i];
    switch (t.role) {
    case chat_role::system:
      marker(chat_text::system);
      if (i == 0 && in_.thinking) effort();
      if (t.message != nullptr) parts(t.message->parts);
      if (i == 0) appendices();
      break;
    case chat_role::latest_reminder:
      marker(chat_text::latest_reminder);
      parts(t.message->parts);
      break;
    case chat_role::assistant: assistant(i); break;
    case chat_role::user:
    case chat_role::tool:
      marker(chat_text::user);
      for (size_t b = 0; b < t.blocks.size(); ++b) {
        if (b > 0) content(chat_text::joiner);
        if (t.blocks[b].is_tool_result) content(chat_text::tool_result_open);
        parts(t.blocks[b].parts);
        if (t.blocks[b].is_tool_result) content(chat_text::tool_result_close);
      }
      break;
    }
  }

  void appendices() {
    if (!in_.tools.empty()) {
      marker(chat_text::joiner), marker(chat_text::tools_head);
      for (size_t i = 0; i < in_.tools.size(); ++i) {
        if (i > 0) content("\n");
        content(in_.tools[i].schema_line);
      }
      marker(chat_text::tools_tail);
    }
    if (!in_.response_format.empty()) {
      marker(chat_text::joiner), marker(chat_text::response_format_head);
      content(in_.response_format);
    }
  }

  void assistant(size_t i) {
    const chat_message& m = *turns_[i].message;
    const bool is_continued = in_.continue_final_message && i + 1 == turns_.size();
    const bool has_content =
        std::any_of(m.parts.begin(), m.parts.end(), [](const content_part& p) { return !p.text.empty(); });
    const bool follows_task = i > 0 && !turns_[i - 1].task.empty();
    out_.start = parser_start::content;
    if (in_.thinking && shows_reasoning(i) && !follows_task) {
      content(m.reasoning);
      if (is_continued && !m.reasoning.empty() && !has_content && m.calls.empty()) {
        out_.start = parser_start::reasoning;
        return;
      }
      marker(chat_text::think_end);
    }
    parts(m.parts);
    if (!m.calls.empty()) calls(m.calls);
    if (!is_continued) marker(chat_text::eos);
  }

  void calls(const std::vector<history_call>& list) {
    marker(chat_text::joiner), marker(chat_text::calls_open);
    for (size_t c = 0; c < list.size(); ++c) {
      if (c > 0) marker(chat_text::between_calls);
      marker(chat_text::invoke_open), content(list[c].name), marker(chat_text::invoke_opened);
      for (size_t a = 0; a < list[c].arguments.size(); ++a) {
        const call_argument& argument = list[c].arguments[a];
        if (a > 0) marker(chat_text::between_parameters);
        marker(chat_text::parameter_open), content(argument.key);
        marker(chat_text::parameter_is_string), marker(argument.is_string ? "true" : "false");
        marker(chat_text::parameter_opened), content(argument.value), marker(chat_text::parameter_close);
      }
      marker(chat_text::invoke_close);
    }
    marker(chat_text::calls_close);
  }

  // What stands between a message and the model's next one: a task token or the header of chat.md 2.2.
  void transition(size_t i) {
    if (i + 1 < turns_.size()) {
      const chat_role next = turns_[i + 1].role;
      if (next != chat_role::assistant && next != chat_role::latest_reminder) return;
    }
    const turn& t = turns_[i];
    if (!t.task.empty()) {
      if (t.task == "action") header(in_.thinking);
      marker(task_token(t.task));
      out_.start = parser_start::content; // the answer to a task has no reasoning
    } else if (is_user_like(i)) {
      header(in_.thinking && shows_reasoning(i));
    }
  }

  const chat_input& in_;
  std::vector<turn> turns_;
  std::ptrdiff_t last_user_like_ = -1;
  bool drops_ = false; // earlier reasoning is left out (chat.md 2.5)
  bool ends_with_header_ = false;
  rendered_prompt out_;
};

} // namespace

rendered_prompt render_chat(const chat_input& input) {
  check(input);
  std::vector<turn> turns = to_turns(input);
  sort_tool_results(turns);
  return renderer(input, std::move(turns)).render();
}

} // namespace troupe
