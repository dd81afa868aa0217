// `arguments` of a call is an object, or a JSON string decoded at most twice; what is no object stays one argument.
#include "net/chat_calls.h"

#include "net/python_json.h"

#include <fmt/format.h>

namespace troupe {
namespace {

constexpr size_t max_name = 64; // chat.md section 6

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > max_name) return false;
  for (const char c : s)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
          c == ':' || c == '-'))
      return false;
  return true;
}

// The namespace beside or inside a tool; empty if there is none.
qualified_name read_namespace(const field_reader& at) {
  const json_value* v = at.present("namespace");
  if (!v) return {};
  if (v->is(json_kind::string)) return {std::string(v->text), {}};
  if (v->is(json_kind::object)) {
    const field_reader inner(*v, at.path_of("namespace"), at.problem());
    return {std::string(inner.string("name").value_or("")), std::string(inner.string("description").value_or(""))};
  }
  at.refuse("namespace", fmt::format("{}: expected a string or an object", at.path_of("namespace")));
  return {};
}

void append_members(std::vector<call_argument>& out, const json_value& object) {
  for (size_t i = 0; i < object.items.size(); i++) {
    const json_value& v = object.items[i];
    const bool text = v.is(json_kind::string);
    out.push_back({std::string(object.keys[i]), text, text ? std::string(v.text) : to_python_json(v)});
  }
}

std::vector<call_argument> read_arguments(const json_value* v) {
  std::vector<call_argument> out;
  if (!v) return out;
  if (v->is(json_kind::object)) {
    append_members(out, *v);
    return out;
  }
  if (!v->is(json_kind::string)) return {{"arguments", false, to_python_json(*v)}};
  json_document first, second;
  if (first.parse(v->text)) {
    const json_value* decoded = &first.root();
    if (decoded->is(json_kind::string) && second.parse(decoded->text)) decoded = &second.root();
    if (decoded->is(json_kind::object)) {
      append_members(out, *decoded);
      return out;
    }
  }
  return {{"arguments", true, std::string(v->text)}};
}

} // namespace

qualified_name read_qualified_name(const field_reader& outer, const field_reader& function) {
  const auto refuse = [&](std::string why) {
    outer.refuse("function", fmt::format("{}: {}", function.path_of("name"), why));
    return qualified_name{};
  };
  const auto name = function.string("name");
  if (!name) return refuse("a function needs a name (string)");
  const auto beside = read_namespace(outer), inside = read_namespace(function);
  if (!beside.name.empty() && !inside.name.empty() && beside.name != inside.name)
    return refuse("two different namespaces");
  qualified_name out = beside.name.empty() ? inside : beside;
  const std::string space = out.name;
  const size_t colons = name->find("::");
  const std::string_view own_space = colons == std::string_view::npos ? std::string_view() : name->substr(0, colons);
  const std::string_view bare = colons == std::string_view::npos ? *name : name->substr(colons + 2);
  if (bare.find("::") != std::string_view::npos) return refuse("more than one namespace");
  if (!is_name(bare) || (colons != std::string_view::npos && !is_name(own_space)) ||
      (!space.empty() && !is_name(space)))
    return refuse(fmt::format("'{}' is not a name of 1 to {} characters A-Z a-z 0-9 _ . : -", quote(*name), max_name));
  if (!space.empty() && !own_space.empty() && space != own_space)
    return refuse(fmt::format("'{}' conflicts with namespace '{}'", quote(*name), quote(space)));
  if (!space.empty() && space.find("::") != std::string::npos) return refuse("more than one namespace");
  out.name = own_space.empty() && !space.empty() ? space + "::" + std::string(bare) : std::string(*name);
  return out;
}

std::vector<history_call> read_history_calls(const field_reader& message) {
  std::vector<history_call> calls;
  const auto add = [&](const field_reader& outer, const json_value& function_object, std::string_view id) {
    const field_reader function(function_object, outer.path_of("function"), message.problem());
    history_call call;
    call.id = id.empty() ? std::string(function.string("id").value_or("")) : std::string(id);
    call.name = read_qualified_name(outer, function).name;
    call.arguments = read_arguments(function.present("arguments"));
    calls.push_back(std::move(call));
  };
  if (const json_value* list = message.of_kind("tool_calls", json_kind::array)) {
    for (size_t i = 0; i < list->items.size() && !message.problem().found(); i++) {
      const auto path = fmt::format("{}[{}]", message.path_of("tool_calls"), i);
      if (!list->items[i].is(json_kind::object)) {
        message.refuse("tool_calls", path + ": expected an object");
        break;
      }
      const field_reader outer(list->items[i], path, message.problem());
      const json_value* function = outer.of_kind("function", json_kind::object);
      if (!function)
        outer.refuse("function", path + ".function: required, expected an object");
      else
        add(outer, *function, outer.string("id").value_or(""));
    }
  } else if (const json_value* legacy = message.of_kind("function_call", json_kind::object)) {
    add(message, *legacy,
        legacy->find("name") && legacy->find("name")->is(json_kind::string) ? legacy->find("name")->text
                                                                            : std::string_view());
  }
  return calls;
}

} // namespace troupe
