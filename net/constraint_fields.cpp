// The wording starts with "not supported yet" where a later version will honour the field.
#include "net/constraint_fields.h"

#include "net/python_json.h"

#include <fmt/format.h>

#include <array>

namespace troupe {
namespace {

void refuse_yet(const field_reader& body, std::string_view key) {
  if (body.present(key)) body.refuse(key, fmt::format("not supported yet: {}", key));
}

void refuse_structured_outputs(const field_reader& body) {
  const json_value* v = body.of_kind("structured_outputs", json_kind::object);
  if (!v) return;
  int n_kinds = 0;
  for (const auto key : {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}) {
    const json_value* kind = v->find(key);
    if (kind && !kind->is(json_kind::null)) n_kinds++;
  }
  if (n_kinds > 1)
    body.refuse("structured_outputs", "structured_outputs: You can only use one kind of structured outputs constraint");
  else
    body.refuse("structured_outputs",
                n_kinds == 0 ? "structured_outputs: expected one of json, regex, choice, grammar, json_object"
                             : "not supported yet: structured_outputs");
}

void refuse_prompt_logprobs(const field_reader& body) {
  const auto k = body.integer("prompt_logprobs");
  if (!k) return;
  if (*k < -1)
    body.refuse("prompt_logprobs", "`prompt_logprobs` must be a positive value or -1.");
  else if (body.truth("stream", false) && *k != 0)
    body.refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
  else
    body.refuse("prompt_logprobs", "not supported yet: prompt_logprobs");
}

// -1: no budget.
void refuse_thinking_budget(const field_reader& body) {
  const auto n = body.integer("thinking_token_budget");
  if (n && *n < -1)
    body.refuse("thinking_token_budget", fmt::format("thinking_token_budget must be at least -1, got {}.", *n));
  else if (n && *n >= 0)
    body.refuse("thinking_token_budget", "not supported yet: thinking_token_budget");
}

std::string read_json_schema(const field_reader& body, const field_reader& format, bool binding) {
  const json_value* holder = format.present("json_schema");
  if (!holder || !holder->is(json_kind::object)) {
    for (const auto key : format.object().keys)
      if (key != "type" && key != "json_schema")
        body.refuse("response_format",
                    fmt::format("response_format.{}: unknown field; the schema goes into json_schema", quote(key, 40)));
    body.refuse("response_format",
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.");
    return {};
  }
  const field_reader at(*holder, "response_format.json_schema", body.problem());
  if (at.truth("strict", false) && binding)
    body.refuse("response_format", "not supported yet: response_format.json_schema.strict (the schema is a hint in the "
                                   "prompt, the output is not constrained)");
  const json_value* schema = at.of_kind("schema", json_kind::object);
  if (!schema) {
    body.refuse("response_format", "response_format.json_schema.schema: required, expected an object");
    return {};
  }
  return to_python_json(*schema);
}

} // namespace

std::string read_response_format(const field_reader& body, bool hint_on, bool binding) {
  const json_value* v = body.of_kind("response_format", json_kind::object);
  if (!v) return {};
  const field_reader at(*v, "response_format", body.problem());
  const auto type = at.string("type");
  if (!type) {
    body.refuse("response_format", "response_format.type: required, expected text, json_object or json_schema");
    return {};
  }
  if (*type == "text") return {};
  std::string hint;
  if (*type == "json_object") {
    hint = "{\"type\": \"json_object\"}";
  } else if (*type == "json_schema") {
    hint = read_json_schema(body, at, binding);
  } else {
    body.refuse("response_format", *type == "structural_tag"
                                       ? std::string("not supported yet: response_format type structural_tag")
                                       : fmt::format("response_format.type: expected text, json_object or json_schema, "
                                                     "found '{}'",
                                                     quote(*type)));
    return {};
  }
  if (hint_on) return hint;
  if (binding)
    body.refuse("response_format", fmt::format("not supported yet: response_format type {} while the server's "
                                               "response_format_hint is off",
                                               *type));
  return {};
}

void refuse_unsupported(const field_reader& body) {
  if (body.truth("use_beam_search", false))
    body.problem().add({501, "NotImplementedError", "use_beam_search is not implemented", "use_beam_search", 0});
  refuse_structured_outputs(body);
  refuse_prompt_logprobs(body);
  for (const auto key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
                         "grammar", "structural_tag", "repetition_detection", "prompt_embeds"})
    refuse_yet(body, key);
  refuse_thinking_budget(body);
  for (const auto& [outer, inner] : {std::pair{"thinking", "budget_tokens"}, std::pair{"reasoning", "max_tokens"}}) {
    const json_value* v = body.present(outer);
    if (v && v->find(inner) && !v->find(inner)->is(json_kind::null))
      body.refuse(outer, fmt::format("not supported yet: {}.{}", outer, inner));
  }
  if (body.present("logits_processors")) body.refuse("logits_processors", "logits_processors are not accepted");
  if (body.present("chat_template"))
    body.refuse("chat_template", "chat_template: this server takes no templates from clients");
  if (const json_value* kwargs = body.of_kind("mm_processor_kwargs", json_kind::object);
      kwargs && !kwargs->keys.empty())
    body.refuse("mm_processor_kwargs",
                fmt::format("mm_processor_kwargs: unknown key '{}'", quote(kwargs->keys.front(), 40)));
  if (const json_value* list = body.of_kind("modalities", json_kind::array))
    for (const auto& v : list->items)
      if (!v.is(json_kind::string) || v.text != "text") body.refuse("modalities", "modalities: only text is supported");
}

} // namespace troupe
