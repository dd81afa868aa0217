// First hit wins: chat_template_kwargs, `thinking`, reasoning_effort, the server's default; effort "none" beats all.
#include "net/chat_mode.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <span>

namespace troupe {
namespace {

struct effort_name {
  std::string_view name;
  int32_t number;
};
constexpr effort_name official[] = {{"minimal", 50}, {"low", 50},   {"medium", 75},
                                    {"high", 75},    {"xhigh", 75}, {"max", 100}};
constexpr effort_name vllm0909[] = {{"low", 25}, {"high", 50}, {"xhigh", 75}, {"max", 100}};

struct effort_choice {
  bool given = false, off = false;
  int32_t number = 0;
};

effort_choice read_effort(const json_value& v, const settings& config, request_problem& problem) {
  const auto refuse = [&](std::string found) {
    problem.add(
        fmt::format("reasoning_effort: expected none, minimal, low, medium, high, xhigh, max or an integer from "
                    "1 to 100, found {}",
                    found),
        "reasoning_effort");
    return effort_choice{};
  };
  int64_t number = 0;
  if (v.is(json_kind::number)) {
    const auto n = to_integer(v);
    if (!n) return refuse(quote(v.text));
    number = *n;
  } else if (v.is(json_kind::string)) {
    if (v.text == "none") return {true, true, 0};
    const std::span<const effort_name> table = config.effort_table == "vllm0909"
                                                   ? std::span<const effort_name>(vllm0909)
                                                   : std::span<const effort_name>(official);
    for (const auto& e : table)
      if (e.name == v.text) return {true, false, e.number};
    const auto r = std::from_chars(v.text.data(), v.text.data() + v.text.size(), number);
    if (v.text.empty() || r.ec != std::errc() || r.ptr != v.text.data() + v.text.size())
      return refuse("'" + quote(v.text) + "'");
  } else {
    return refuse(name(v.kind));
  }
  if (number < 1 || number > 100) return refuse(std::to_string(number));
  return {true, false, static_cast<int32_t>(number)};
}

// `thinking: {type}` of DeepSeek and Anthropic clients.
std::optional<bool> read_thinking_object(const field_reader& body) {
  const json_value* v = body.of_kind("thinking", json_kind::object);
  if (!v) return {};
  const field_reader at(*v, "thinking", body.problem());
  const auto type = at.string("type");
  if (type && (*type == "enabled" || *type == "adaptive")) return true;
  if (type && *type == "disabled") return false;
  at.refuse("type", "thinking.type: expected enabled, disabled or adaptive");
  return {};
}

} // namespace

chat_mode read_chat_mode(const field_reader& body, const settings& config) {
  chat_mode mode;
  mode.effort = config.effort_table == "vllm0909" ? 50 : 75;
  std::optional<bool> from_kwargs, from_reasoning;
  effort_choice effort;
  const json_value* inner_effort = nullptr;
  if (const json_value* kwargs = body.of_kind("chat_template_kwargs", json_kind::object)) {
    const field_reader at(*kwargs, "chat_template_kwargs", body.problem());
    const auto a = at.truth("thinking"), b = at.truth("enable_thinking");
    if (a || b) from_kwargs = a.value_or(false) || b.value_or(false);
    mode.drop_thinking = at.truth("drop_thinking", true);
    inner_effort = at.present("reasoning_effort");
  }
  if (const json_value* reasoning = body.of_kind("reasoning", json_kind::object)) { // OpenRouter style
    const field_reader at(*reasoning, "reasoning", body.problem());
    from_reasoning = at.truth("enabled");
    if (const json_value* e = at.present("effort"); e && !inner_effort) inner_effort = e;
  }
  const json_value* outer_effort = body.present("reasoning_effort");
  if (outer_effort) effort = read_effort(*outer_effort, config, body.problem());
  if (inner_effort) {
    const auto inner = read_effort(*inner_effort, config, body.problem());
    if (!outer_effort) effort = inner;
  }
  const auto from_object = read_thinking_object(body);
  if (effort.given && !effort.off) mode.effort = effort.number;

  if (effort.given && effort.off) {
    mode.thinking = false;
  } else if (from_kwargs) {
    mode.thinking = *from_kwargs;
  } else if (from_object) {
    mode.thinking = *from_object;
  } else if (from_reasoning) {
    mode.thinking = *from_reasoning;
  } else if (effort.given) {
    mode.thinking = true;
  } else {
    mode.thinking = config.default_thinking;
  }
  return mode;
}

} // namespace troupe
