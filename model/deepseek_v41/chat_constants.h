// The exact strings of the DeepSeek-V4.1 chat format, made from tests/golden/chat/constants.json; a test compares them.
// Spec: chat.md sections 1.5, 2 and 3. The strings are protocol constants of the model (model repository: MIT).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace troupe::chat_text {

// Added tokens.
inline constexpr std::string_view bos = "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>";
inline constexpr std::string_view eos = "<\uFF5Cend\u2581of\u2581sentence\uFF5C>";
inline constexpr std::string_view pad = "<\uFF5C\u2581pad\u2581\uFF5C>";
inline constexpr std::string_view system = "<\uFF5CSystem\uFF5C>";
inline constexpr std::string_view user = "<\uFF5CUser\uFF5C>";
inline constexpr std::string_view assistant = "<\uFF5CAssistant\uFF5C>";
inline constexpr std::string_view latest_reminder = "<\uFF5Clatest_reminder\uFF5C>";
inline constexpr std::string_view think_start = "<think>";
inline constexpr std::string_view think_end = "</think>";
inline constexpr std::string_view dsml = "\uFF5CDSML\uFF5C";
inline constexpr std::string_view image = "<\uFF5Cdeepseek_image\uFF5C>";

// Task tokens (chat.md 2.11): the value of a message's `task` and its token.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 6> tasks = {{
    {"action", "<\uFF5Caction\uFF5C>"},
    {"query", "<\uFF5Cquery\uFF5C>"},
    {"authority", "<\uFF5Cauthority\uFF5C>"},
    {"domain", "<\uFF5Cdomain\uFF5C>"},
    {"title", "<\uFF5Ctitle\uFF5C>"},
    {"read_url", "<\uFF5Cread_url\uFF5C>"},
}};

// The system prompt.
inline constexpr std::string_view effort_prefix = "Reasoning Effort: ";
inline constexpr std::string_view effort_suffix =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n"
    "\n";
inline constexpr std::string_view tools_head =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<\uFF5CDSML\uFF5C calls>\" block like the following:\n"
    "\n"
    "<\uFF5CDSML\uFF5C calls>\n"
    "<\uFF5CDSML\uFF5C invoke name=\"$TOOL_NAME\">\n"
    "<\uFF5CDSML\uFF5C parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</\uFF5CDSML\uFF5C "
    "parameter>\n"
    "...\n"
    "</\uFF5CDSML\uFF5C invoke>\n"
    "<\uFF5CDSML\uFF5C invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\uFF5CDSML\uFF5C invoke>\n"
    "</\uFF5CDSML\uFF5C calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";
inline constexpr std::string_view tools_tail =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
inline constexpr std::string_view response_format_head = "## Response Format:\n"
                                                         "\n"
                                                         "You MUST strictly adhere to the following schema to reply:\n";

// Turns.
inline constexpr std::string_view joiner = "\n\n";
inline constexpr std::string_view tool_result_open = "<tool_result>";
inline constexpr std::string_view tool_result_close = "</tool_result>";

// Calls in history (chat.md 2.8), in parts around what the client wrote.
inline constexpr std::string_view calls_open = "<\uFF5CDSML\uFF5C calls>\n";
inline constexpr std::string_view calls_close = "\n</\uFF5CDSML\uFF5C calls>";
inline constexpr std::string_view invoke_open = "<\uFF5CDSML\uFF5C invoke name=\""; // then the name
inline constexpr std::string_view invoke_opened = "\">\n";
inline constexpr std::string_view invoke_close = "\n</\uFF5CDSML\uFF5C invoke>";
inline constexpr std::string_view parameter_open = "<\uFF5CDSML\uFF5C parameter name=\""; // then the key
inline constexpr std::string_view parameter_is_string = "\" string=\"";                   // then true or false
inline constexpr std::string_view parameter_opened = "\">";                               // then the value
inline constexpr std::string_view parameter_close = "</\uFF5CDSML\uFF5C parameter>";
inline constexpr std::string_view between_calls = "\n";
inline constexpr std::string_view between_parameters = "\n";

// Reserved tokens that are never sampled (chat.md 5.7), by how they begin; BOS, pad and the image token too.
inline constexpr std::array<std::string_view, 3> reserved_prefixes = {
    {"<\uFF5Cplace\u2581holder\u2581no\u2581", "<|place_holder_mm_span_", "<\uFF5Crl_image_"}};

// reasoning_effort names and numbers (chat.md 2.4).
struct effort_name {
  std::string_view name;
  int32_t effort;
};
inline constexpr int32_t effort_official_default = 75;
inline constexpr std::array<effort_name, 6> effort_official = {
    {{"minimal", 50}, {"low", 50}, {"medium", 75}, {"high", 75}, {"xhigh", 75}, {"max", 100}}};
inline constexpr int32_t effort_vllm0909_default = 50;
inline constexpr std::array<effort_name, 4> effort_vllm0909 = {
    {{"low", 25}, {"high", 50}, {"xhigh", 75}, {"max", 100}}};

} // namespace troupe::chat_text
