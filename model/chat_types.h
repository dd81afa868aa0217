// What a chat request says, with no JSON left in it; net/openai fills these, model/deepseek_v41/chat renders them.
// Spec: chat.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

enum class chat_role : uint8_t { system, user, assistant, tool, latest_reminder };

// One argument of a call in history, in the client's order (chat.md 2.8). `value` is the text between the tags:
// verbatim for a string, Python-style JSON (chat.md 2.7) for all else.
struct call_argument {
  std::string key;
  bool is_string = false;
  std::string value;
};

struct history_call {
  std::string id;   // `id`, else `function.id`; may be empty
  std::string name; // qualified name
  std::vector<call_argument> arguments;
};

// A part of a message's content: text, or an image named by its index in chat_input::images.
struct content_part {
  std::string text;
  int32_t image = -1; // >= 0: an image part, text unused
};

struct chat_message {
  chat_role role = chat_role::user;
  std::vector<content_part> parts; // null content and "" are both empty
  std::string reasoning;           // assistant only
  std::vector<history_call> calls; // assistant only
  std::string tool_call_id;        // tool only
  std::string task;                // chat.md 2.11; empty: none
};

// JSON types a tool's schema gives one parameter (chat.md 3.3); `any`: unknown, a union, or no schema.
enum class parameter_type : uint8_t { any, string, integer, number, boolean, object, array, null };

struct chat_tool {
  std::string name;        // qualified
  std::string schema_line; // the function object as Python-style JSON, one line (chat.md 2.7)
  std::vector<std::pair<std::string, parameter_type>> parameters; // from the schema, in its order
};

enum class tool_choice : uint8_t { none, automatic, required, named };

struct chat_input {
  std::vector<chat_message> messages;
  std::vector<chat_tool> tools; // empty when tool_choice is none
  tool_choice choice = tool_choice::automatic;
  std::string named_tool; // with tool_choice::named
  bool parallel_tool_calls = true;
  bool thinking = true; // chat.md 2.3, already decided
  int32_t effort = 75;  // chat.md 2.4, already a number 1..100
  bool drop_thinking = true;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string response_format; // Python-style JSON for the hint of chat.md 2.10; empty: none
};

// State of the output parser when generation starts (chat.md 5.1).
enum class parser_start : uint8_t { content, reasoning, tools };

// A rendered prompt: spans of text; a marker span may hold added tokens, a content span holds what a client wrote.
struct prompt_span {
  std::string text;
  bool is_marker = false;
};

struct rendered_prompt {
  std::vector<prompt_span> spans; // concatenated: the prompt
  std::vector<int32_t> images;    // indices into the request's images, in prompt order (after tool result sorting)
  parser_start start = parser_start::content;
  std::string text() const {
    std::string all;
    for (const auto& s : spans) all += s.text;
    return all;
  }
};

// One event of the output parser. Fragments of one call are contiguous; `call` comes before its `arguments`.
struct output_event {
  enum class kind : uint8_t { reasoning, content, call, arguments };
  kind what = kind::content;
  std::string text;       // reasoning, content, arguments: the fragment; call: the name
  int32_t call_index = 0; // call, arguments
};

} // namespace troupe
