// The schema line is the function object as the client wrote it: order, unknown keys and numbers are kept.
#include "net/tool_fields.h"

#include "net/chat_calls.h"
#include "net/json_text.h"
#include "net/python_json.h"

#include <fmt/format.h>

#include <unordered_set>

namespace troupe {
namespace {

parameter_type to_parameter_type(const json_value& schema) {
  const json_value* type = schema.find("type");
  if (!type || !type->is(json_kind::string)) return parameter_type::any;
  const auto t = type->text;
  if (t == "string") return parameter_type::string;
  if (t == "integer") return parameter_type::integer;
  if (t == "number") return parameter_type::number;
  if (t == "boolean") return parameter_type::boolean;
  if (t == "object") return parameter_type::object;
  if (t == "array") return parameter_type::array;
  if (t == "null") return parameter_type::null;
  return parameter_type::any;
}

std::string to_schema_line(const json_value& function, const qualified_name& qualified) {
  std::string out = "{";
  const auto comma = [&] {
    if (out.size() > 1) out += ", ";
  };
  bool described = qualified.description.empty();
  for (size_t i = 0; i < function.items.size(); i++) {
    const auto key = function.keys[i];
    const json_value& v = function.items[i];
    if (key == "namespace") continue;
    comma();
    append_json_string(out, key);
    out += ": ";
    if (key == "name") {
      append_json_string(out, qualified.name);
    } else if (key == "description" && !described && v.is(json_kind::string)) {
      append_json_string(out,
                         v.text.empty() ? qualified.description : qualified.description + "\n" + std::string(v.text));
      described = true;
    } else {
      append_python_json(out, v);
    }
  }
  if (!described) {
    comma();
    out += "\"description\": ";
    append_json_string(out, qualified.description);
  }
  return out + "}";
}

chat_tool read_tool(const field_reader& outer, const json_value& function, const std::string& path, bool binding) {
  const field_reader inner(function, path, outer.problem());
  chat_tool tool;
  const auto qualified = read_qualified_name(outer, inner);
  tool.name = qualified.name;
  inner.string("description");
  tool.schema_line = to_schema_line(function, qualified);
  if (inner.truth("strict", false) && binding)
    inner.refuse("strict", fmt::format("not supported yet: {} (a function's arguments are not constrained)",
                                       inner.path_of("strict")));
  if (const json_value* schema = inner.of_kind("parameters", json_kind::object)) {
    const json_value* properties = schema->find("properties");
    if (properties && properties->is(json_kind::object))
      for (size_t i = 0; i < properties->items.size(); i++)
        tool.parameters.emplace_back(properties->keys[i], to_parameter_type(properties->items[i]));
  }
  return tool;
}

std::vector<chat_tool> read_tool_list(const field_reader& body, bool strict_openai, bool binding) {
  std::vector<chat_tool> tools;
  const bool legacy = !body.present("tools") && body.present("functions");
  const std::string_view key = legacy ? "functions" : "tools";
  const json_value* list = body.of_kind(key, json_kind::array);
  if (!list) return tools;
  if (list->items.empty() && strict_openai)
    body.refuse(key, fmt::format("`{}` must not be an empty array. Either provide at least one tool or omit the field "
                                 "entirely.",
                                 key));
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < list->items.size() && !body.problem().found(); i++) {
    const json_value& v = list->items[i];
    const std::string path = fmt::format("{}[{}]", key, i);
    if (!v.is(json_kind::object)) {
      body.refuse(key, fmt::format("{}: expected an object, found {}", path, name(v.kind)));
      break;
    }
    const field_reader outer(v, path, body.problem());
    const json_value* function = &v;
    if (!legacy) {
      const auto type = outer.string("type");
      if (type && *type != "function") {
        outer.refuse("type", fmt::format("{}.type: '{}' is not supported, only function is", path, quote(*type)));
        break;
      }
      function = outer.of_kind("function", json_kind::object);
      if (!function) {
        outer.refuse("function", path + ".function: required, expected an object");
        break;
      }
    }
    tools.push_back(read_tool(outer, *function, legacy ? path : path + ".function", binding));
    if (!body.problem().found() && !names.insert(tools.back().name).second)
      body.refuse(key, fmt::format("{}: the name '{}' is used twice", path, quote(tools.back().name)));
  }
  return tools;
}

// Name in {type: function, function: {name}} or, legacy, {name}; empty and refused if there is none.
std::string read_named(const field_reader& body, std::string_view key, const json_value& v) {
  const field_reader at(v, std::string(key), body.problem());
  const json_value* holder = key == "tool_choice" ? at.of_kind("function", json_kind::object) : &v;
  std::string found;
  if (holder) found = field_reader(*holder, std::string(key), body.problem()).string("name").value_or("");
  if (found.empty())
    body.refuse(key, fmt::format("{}: expected {{\"type\": \"function\", \"function\": {{\"name\": "
                                 "..}}}}",
                                 key));
  return found;
}

} // namespace

read_tools_result read_tools(const field_reader& body, bool strict_openai, bool binding) {
  read_tools_result out;
  out.tools = read_tool_list(body, strict_openai, binding);
  out.parallel = body.truth("parallel_tool_calls", true);
  out.choice = out.tools.empty() ? tool_choice::none : tool_choice::automatic;
  const bool legacy = !body.present("tool_choice") && body.present("function_call");
  const std::string_view key = legacy ? "function_call" : "tool_choice";
  const json_value* v = body.present(key);
  if (!v) return out;
  if (v->is(json_kind::string) && v->text == "none") {
    out.choice = tool_choice::none;
    out.tools.clear();
    return out;
  }
  if (v->is(json_kind::string) && v->text == "auto") return out;
  if (v->is(json_kind::string) && v->text == "required") {
    out.choice = tool_choice::required;
  } else if (v->is(json_kind::object)) {
    out.choice = tool_choice::named;
    out.named = read_named(body, key, *v);
  } else {
    body.refuse(key, fmt::format("{}: expected none, auto, required or an object naming a function", key));
    return out;
  }
  if (out.tools.empty()) {
    body.refuse(key, fmt::format("When using `{}`, `tools` must be set.", key));
    return out;
  }
  if (out.choice == tool_choice::named) {
    bool known = false;
    for (const auto& t : out.tools) known = known || t.name == out.named;
    if (!known)
      body.refuse(key, fmt::format("The tool specified in `{}` does not match any of the specified `tools`", key));
  }
  if (binding)
    body.refuse(key,
                fmt::format("not supported yet: {} other than none and auto (the output is not constrained)", key));
  return out;
}

} // namespace troupe
