// One class walks the list; every refusal names messages[i].field.
#include "net/chat_messages.h"

#include "net/chat_calls.h"
#include "net/data_uri.h"

#include <fmt/format.h>

#include <array>

namespace troupe {
namespace {

constexpr std::array tasks = {"action", "query", "authority", "domain", "title", "read_url"}; // chat.md 2.11

class message_reader {
public:
  message_reader(const settings& config, request_problem& problem, read_messages_result& out)
      : config_(config), problem_(problem), out_(out) {}

  void read(const json_value& v, size_t index) {
    path_ = fmt::format("messages[{}]", index);
    if (!v.is(json_kind::object)) return refuse(fmt::format("{}: expected an object, found {}", path_, name(v.kind)));
    const field_reader at(v, path_, problem_);
    const auto role = at.string("role");
    if (!role) return refuse(path_ + ".role: required, expected a string");
    chat_message m;
    if (!read_role(*role, m, at)) return;
    read_content(v.find("content"), m, *role);
    if (m.role == chat_role::assistant) read_assistant(at, v, m);
    if (config_.enable_task_field) read_task(at, m);
    out_.ends_with_prefix = at.truth("prefix", false);
    out_.messages.push_back(std::move(m));
  }

private:
  void refuse(std::string why) { problem_.add(std::move(why), "messages"); }

  bool read_role(std::string_view role, chat_message& m, const field_reader& at) {
    if (role == "system" || role == "developer") {
      m.role = chat_role::system;
    } else if (role == "user") {
      m.role = chat_role::user;
    } else if (role == "assistant") {
      m.role = chat_role::assistant;
    } else if (role == "tool") {
      m.role = chat_role::tool;
      m.tool_call_id = at.string("tool_call_id").value_or("");
    } else if (role == "function") {
      m.role = chat_role::tool;
      m.tool_call_id = at.string("name").value_or("");
    } else if (role == "latest_reminder") {
      m.role = chat_role::latest_reminder;
    } else {
      refuse(fmt::format("{}.role: expected system, developer, user, assistant, tool, function or latest_reminder, "
                         "found '{}'",
                         path_, quote(role)));
      return false;
    }
    return true;
  }

  void read_content(const json_value* content, chat_message& m, std::string_view role) {
    if (!content) {
      if (m.role != chat_role::assistant) refuse(path_ + ".content: required, expected a string or a list of parts");
      return;
    }
    if (content->is(json_kind::null)) return;
    if (content->is(json_kind::string)) {
      m.parts.push_back({std::string(content->text), -1});
    } else if (content->is(json_kind::array) && m.role != chat_role::latest_reminder) {
      for (size_t i = 0; i < content->items.size() && !problem_.found(); i++)
        read_part(content->items[i], fmt::format("{}.content[{}]", path_, i), m, role);
    } else {
      refuse(fmt::format("{}.content: expected a string or a list of parts, found {}", path_, name(content->kind)));
    }
  }

  void read_part(const json_value& v, const std::string& path, chat_message& m, std::string_view role) {
    if (v.is(json_kind::string)) {
      m.parts.push_back({std::string(v.text), -1});
      return;
    }
    if (!v.is(json_kind::object)) return refuse(fmt::format("{}: expected an object, found {}", path, name(v.kind)));
    const field_reader part(v, path, problem_);
    const auto type = part.string("type");
    if (!type) return refuse(path + ".type: required, expected a string");
    if (*type == "text" || *type == "input_text" || *type == "output_text" || *type == "refusal") {
      const std::string_view key = *type == "refusal" && v.find("refusal") ? "refusal" : "text";
      const auto text = part.string(key);
      if (!text) return refuse(fmt::format("{}.{}: required, expected a string", path, key));
      m.parts.push_back({std::string(*text), -1});
    } else if (*type == "image_url" || *type == "input_image" || *type == "image") {
      if (m.role != chat_role::user && m.role != chat_role::tool)
        return refuse(fmt::format("{}: images are taken in user and tool messages only, found one in {}", path, role));
      read_image(part, path, m);
    } else if (*type == "thinking" && m.role == chat_role::assistant) {
      m.reasoning += part.string("thinking").value_or("");
    } else if (m.role != chat_role::tool) { // chat.md 2.6: dropped in tool results, as the reference does
      refuse(fmt::format("{}.type: '{}' is not supported", path, quote(*type)));
    }
  }

  void read_image(const field_reader& part, const std::string& path, chat_message& m) {
    std::string_view url;
    for (const auto key : {"image_url", "url", "image"}) {
      const json_value* v = part.present(key);
      if (v && v->is(json_kind::object)) v = v->find("url");
      if (v && v->is(json_kind::string)) {
        url = v->text;
        break;
      }
    }
    if (url.empty()) return refuse(path + ": an image part needs image_url (a data: URI)");
    if (out_.image_files.size() >= static_cast<size_t>(config_.max_images))
      return refuse(fmt::format("At most {} image(s) may be provided in one prompt.", config_.max_images));
    std::string bytes;
    const auto why = read_image_source(url, static_cast<size_t>(config_.max_image_bytes), bytes);
    if (!why.empty()) return refuse(fmt::format("{} ({})", why, path));
    m.parts.push_back({{}, static_cast<int32_t>(out_.image_files.size())});
    out_.image_files.push_back(std::move(bytes));
  }

  void read_assistant(const field_reader& at, const json_value& v, chat_message& m) {
    auto reasoning = at.string("reasoning_content");
    if (!reasoning) reasoning = at.string("reasoning");
    if (reasoning) m.reasoning = *reasoning;
    m.calls = read_history_calls(at);
    const json_value* content = v.find("content");
    const bool has_content = content && !content->is(json_kind::null);
    if (!has_content && m.calls.empty() && m.reasoning.empty())
      refuse(path_ + ": an assistant message needs content, reasoning_content or tool_calls");
  }

  void read_task(const field_reader& at, chat_message& m) {
    const auto task = at.string("task");
    if (!task) return;
    for (const char* known : tasks)
      if (*task == known) m.task = *task;
    if (m.task.empty()) refuse(fmt::format("{}.task: '{}' is not a task", path_, quote(*task)));
  }

  const settings& config_;
  request_problem& problem_;
  read_messages_result& out_;
  std::string path_;
};

} // namespace

read_messages_result read_messages(const field_reader& body, const settings& config) {
  read_messages_result out;
  const json_value* list = body.of_kind("messages", json_kind::array);
  if (!list) {
    body.refuse("messages", "messages: required, expected an array");
    return out;
  }
  if (list->items.empty()) body.refuse("messages", "messages: expected at least one message, found none");
  message_reader reader(config, body.problem(), out);
  for (size_t i = 0; i < list->items.size() && !body.problem().found(); i++) reader.read(list->items[i], i);
  return out;
}

} // namespace troupe
