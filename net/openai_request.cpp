// Order of the checks: JSON, kinds and ranges of fields, messages, then what cannot be honoured yet.
#include "net/openai_request.h"

#include "net/chat_messages.h"
#include "net/chat_mode.h"
#include "net/constraint_fields.h"
#include "net/fields.h"
#include "net/sampling_fields.h"
#include "net/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace troupe {
namespace {

constexpr int64_t max_logprobs = 20;

// Fields of any endpoint that are read into: arrays and objects under other names are checked and dropped.
constexpr std::string_view trees[] = {"messages",
                                      "tools",
                                      "functions",
                                      "function_call",
                                      "tool_choice",
                                      "response_format",
                                      "stream_options",
                                      "logit_bias",
                                      "stop",
                                      "stop_token_ids",
                                      "allowed_token_ids",
                                      "bad_words",
                                      "prompt",
                                      "tokens",
                                      "chat_template_kwargs",
                                      "thinking",
                                      "reasoning",
                                      "structured_outputs",
                                      "mm_processor_kwargs",
                                      "modalities"};

// The body as an object; records the problem otherwise.
bool read_body(std::string_view body, json_document& doc, request_problem& problem) {
  if (!doc.parse(body, trees)) {
    problem.add("The request body is not valid JSON: " + doc.error(), "");
  } else if (!doc.root().is(json_kind::object)) {
    problem.add(fmt::format("The request body must be a JSON object, found {}", name(doc.root().kind)), "");
  }
  return !problem.found();
}

void read_model(const field_reader& body, const request_facts& facts, answer_style& style) {
  const auto model = body.string("model");
  style.model = model ? std::string(*model) : facts.model_names.front();
  if (model && !is_served(facts, *model))
    body.problem().add(
        {404, "NotFoundError", fmt::format("The model `{}` does not exist.", quote(*model)), "model", 0});
}

void read_stream(const field_reader& body, answer_style& style) {
  style.stream = body.truth("stream", false);
  const json_value* options = body.of_kind("stream_options", json_kind::object);
  if (!options) return;
  if (!style.stream) body.refuse("stream_options", "Stream options can only be defined when `stream=True`.");
  const field_reader at(*options, "stream_options", body.problem());
  style.include_usage = at.truth("include_usage", false);
  style.continuous_usage = at.truth("continuous_usage_stats", false) && style.include_usage;
}

// Ids, names and flags that both endpoints share. `prefix`: of the answer's id.
void read_common(const field_reader& body, const request_facts& facts, std::string_view request_id, const char* prefix,
                 parsed_request& out) {
  read_model(body, facts, out.style);
  read_stream(body, out.style);
  std::string id(request_id);
  if (id.empty()) id = accepted_request_id(body.string("request_id").value_or(""));
  if (id.empty()) id = new_request_id();
  out.request.id = id;
  out.style.id = prefix + id;
  out.style.created = static_cast<int64_t>(std::time(nullptr));
  out.style.fingerprint = facts.fingerprint;
  out.style.token_ids = body.truth("return_token_ids", false);
  out.style.tokens_as_ids = body.truth("return_tokens_as_token_ids", false);
  out.request.wants_prompt_ids = out.style.token_ids;
  out.request.wants_prompt_text = body.truth("return_prompt_text", false);
}

void read_chat_logprobs(const field_reader& body, parsed_request& out) {
  const bool wanted = body.truth("logprobs", false);
  const auto top = body.integer("top_logprobs");
  if (top && *top < 0)
    body.refuse("top_logprobs", "`top_logprobs` must be a positive value.");
  else if (top && *top > max_logprobs)
    body.refuse("top_logprobs", fmt::format("Requested sample logprobs of {}, which is greater than max allowed: {}",
                                            *top, max_logprobs));
  else if (top && *top > 0 && !wanted)
    body.refuse("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
  out.style.logprobs = wanted;
  if (wanted) out.request.sampling.n_logprobs = static_cast<int32_t>(std::clamp<int64_t>(top.value_or(0), 0, 20));
}

void read_generation_prompt(const field_reader& body, bool ends_with_prefix, chat_input& chat) {
  const auto add = body.truth("add_generation_prompt");
  chat.continue_final_message = body.truth("continue_final_message", false);
  if (chat.continue_final_message && add.value_or(false))
    body.refuse("continue_final_message",
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
  chat.continue_final_message = chat.continue_final_message || ends_with_prefix;
  chat.add_generation_prompt = add.value_or(true) && !chat.continue_final_message;
  if (chat.continue_final_message && (chat.messages.empty() || chat.messages.back().role != chat_role::assistant))
    body.refuse(ends_with_prefix ? "messages" : "continue_final_message",
                "continue_final_message needs a final assistant message");
}

// The part of a chat request that the prompt is made of; also what /tokenize takes.
void read_chat_input(const field_reader& body, const request_facts& facts, bool binding, chat_request& out) {
  auto read = read_messages(body, facts.config);
  auto& chat = out.chat;
  chat.messages = std::move(read.messages);
  out.image_files = std::move(read.image_files);
  const auto mode = read_chat_mode(body, facts.config);
  chat.thinking = mode.thinking;
  chat.effort = mode.effort;
  chat.drop_thinking = mode.drop_thinking;
  read_generation_prompt(body, read.ends_with_prefix, chat);
  auto tools = read_tools(body, facts.config.strict_openai, binding);
  chat.tools = std::move(tools.tools);
  chat.choice = tools.choice;
  chat.named_tool = std::move(tools.named);
  chat.parallel_tool_calls = tools.parallel;
  chat.response_format = read_response_format(body, facts.config.response_format_hint, binding);
}

void read_reasoning_names(const field_reader& body, const settings& config, answer_style& style) {
  bool wanted = body.truth("include_reasoning", true);
  if (const json_value* r = body.present("reasoning"); r && r->is(json_kind::object))
    wanted = wanted && !field_reader(*r, "reasoning", body.problem()).truth("exclude", false);
  style.reasoning_content = wanted && config.reasoning_field != "reasoning";
  style.reasoning = wanted && config.reasoning_field != "reasoning_content";
}

void read_echo(const field_reader& body, const chat_request& request, answer_style& style) {
  if (!body.truth("echo", false) || request.chat.messages.empty()) return;
  const auto& last = request.chat.messages.back();
  if (last.role != chat_role::assistant) return;
  for (const auto& part : last.parts) style.prefix_text += (style.prefix_text.empty() ? "" : "\n\n") + part.text;
}

} // namespace

bool is_served(const request_facts& facts, std::string_view name) {
  return std::find(facts.model_names.begin(), facts.model_names.end(), name) != facts.model_names.end();
}

parsed<parsed_request> parse_chat_request(std::string_view text, const request_facts& facts,
                                          std::string_view request_id, request_use use) {
  parsed<parsed_request> out;
  json_document doc;
  request_problem problem;
  if (read_body(text, doc, problem)) {
    const field_reader body(doc.root(), "", problem);
    auto& request = out.value.request;
    auto& style = out.value.style;
    const bool binding = use == request_use::run;
    read_common(body, facts, request_id, "chatcmpl-", out.value);
    read_chat_input(body, facts, binding, request);
    read_sampling(body, facts, -1, request);
    read_chat_logprobs(body, out.value);
    read_reasoning_names(body, facts.config, style);
    read_echo(body, request, style);
    if (binding) refuse_unsupported(body);
    style.n_choices = request.n;
    style.with_calls = !request.chat.tools.empty();
    style.is_format_hint = !request.chat.response_format.empty();
  }
  if (problem.found()) out.refusal = problem.first();
  return out;
}

namespace {

std::vector<int32_t> to_ids(const json_value& list, int64_t vocabulary, const field_reader& body) {
  std::vector<int32_t> ids;
  for (const auto& v : list.items) {
    const auto id = to_integer(v);
    if (!id) {
      body.refuse("prompt", "prompt: expected a string, an array of strings, of token ids or of arrays of token ids");
    } else if (*id < 0 || *id >= vocabulary) {
      body.refuse("prompt", fmt::format("Token id {} is out of vocabulary", *id));
    } else {
      ids.push_back(static_cast<int32_t>(*id));
    }
  }
  return ids;
}

void read_prompts(const field_reader& body, const request_facts& facts, chat_request& out) {
  const json_value* p = body.present("prompt");
  const auto refuse_empty = [&] { body.refuse("prompt", "prompt must be provided and non-empty."); };
  if (!p) return refuse_empty();
  if (p->is(json_kind::string)) {
    if (p->text.empty()) return refuse_empty();
    out.prompts.emplace_back(p->text);
    return;
  }
  if (!p->is(json_kind::array))
    return body.refuse("prompt", fmt::format("prompt: expected a string or an array, found {}", name(p->kind)));
  if (p->items.empty()) return refuse_empty();
  const json_kind first = p->items.front().kind;
  if (first == json_kind::number) {
    out.prompt_ids.push_back(to_ids(*p, facts.vocabulary, body));
    return;
  }
  for (const auto& v : p->items) {
    if (v.kind != first || (first != json_kind::string && first != json_kind::array))
      return body.refuse("prompt",
                         "prompt: expected a string, an array of strings, of token ids or of arrays of token ids");
    if (first == json_kind::string ? v.text.empty() : v.items.empty()) return refuse_empty();
    if (first == json_kind::string)
      out.prompts.emplace_back(v.text);
    else
      out.prompt_ids.push_back(to_ids(v, facts.vocabulary, body));
  }
}

void read_completion_fields(const field_reader& body, parsed_request& out, bool binding) {
  auto& request = out.request;
  if (const auto k = body.integer("logprobs")) {
    if (*k < 0) body.refuse("logprobs", "`logprobs` must be a positive value.");
    if (*k > max_logprobs)
      body.refuse("logprobs", fmt::format("Requested sample logprobs of {}, which is greater than max allowed: {}", *k,
                                          max_logprobs));
    out.style.logprobs = true;
    request.sampling.n_logprobs = static_cast<int32_t>(std::clamp<int64_t>(*k, 0, max_logprobs));
  }
  request.echo = body.truth("echo", false);
  if (request.echo && out.style.logprobs && binding)
    body.refuse("echo", "not supported yet: echo together with logprobs");
  if (const json_value* suffix = body.present("suffix"); suffix && binding)
    if (!suffix->is(json_kind::string) || !suffix->text.empty())
      body.refuse("suffix", "suffix is not currently supported");
  if (const auto best = body.integer("best_of"); best && *best != request.n)
    body.refuse("best_of", "best_of is only accepted when it equals n");
  if (binding && body.present("response_format")) {
    if (!read_response_format(body, true, true).empty())
      body.refuse("response_format", "not supported yet: response_format on completions");
  }
}

// Every prompt times n is a sequence of its own, and all run at once.
int32_t read_choice_count(const field_reader& body, const request_facts& facts, request_use use,
                          const chat_request& request) {
  const auto n_prompts = static_cast<int64_t>(std::max(request.prompts.size(), request.prompt_ids.size()));
  const int64_t n_choices = n_prompts * request.n, limit = facts.config.max_running;
  if (use == request_use::render && n_prompts > 1)
    body.refuse("prompt", fmt::format("prompt: render takes one prompt, got {}", n_prompts));
  if (request.wants_prompt_text && n_prompts > 1)
    body.refuse("return_prompt_text", "not supported yet: return_prompt_text with several prompts");
  if (n_prompts > limit)
    body.refuse("prompt", fmt::format("prompt: {} prompts, at most {} can run at once", n_prompts, limit));
  if (n_choices > limit)
    body.refuse("n", fmt::format("n: {} prompts times n={} are {} choices, at most {} can run at once", n_prompts,
                                 request.n, n_choices, limit));
  return static_cast<int32_t>(std::min(n_choices, limit));
}

} // namespace

parsed<parsed_request> parse_completion_request(std::string_view text, const request_facts& facts,
                                                std::string_view request_id, request_use use) {
  parsed<parsed_request> out;
  json_document doc;
  request_problem problem;
  if (read_body(text, doc, problem)) {
    const field_reader body(doc.root(), "", problem);
    auto& request = out.value.request;
    const bool binding = use == request_use::run;
    request.is_chat = out.value.style.is_chat = false;
    read_common(body, facts, request_id, "cmpl-", out.value);
    read_prompts(body, facts, request);
    if (const auto max = body.integer("max_tokens"); max && *max == 0 && body.truth("echo", false))
      body.refuse("max_tokens", "not supported yet: echo with max_tokens 0 (scoring a prompt without generating)");
    read_sampling(body, facts, 16, request); // 16: the default of OpenAI and vLLM
    read_completion_fields(body, out.value, binding);
    if (binding) refuse_unsupported(body);
    out.value.style.n_choices = read_choice_count(body, facts, use, request);
  }
  if (problem.found()) out.refusal = problem.first();
  return out;
}

parsed<text_question> parse_tokenize_request(std::string_view text, const request_facts& facts) {
  parsed<text_question> out;
  json_document doc;
  request_problem problem;
  if (read_body(text, doc, problem)) {
    const field_reader body(doc.root(), "", problem);
    answer_style ignored;
    read_model(body, facts, ignored);
    out.value.wants_token_strings = body.truth("return_token_strs", false);
    out.value.expand_images = body.truth("expand_images", false);
    body.truth("add_special_tokens");
    if (body.present("messages")) {
      out.value.what = text_question::kind::tokenize_chat;
      read_chat_input(body, facts, false, out.value.request);
    } else {
      out.value.what = text_question::kind::tokenize_text;
      const auto prompt = body.string("prompt");
      if (!prompt) body.refuse("prompt", "prompt: required (a string), or messages (an array)");
      out.value.text = prompt.value_or("");
    }
  }
  if (problem.found()) out.refusal = problem.first();
  return out;
}

parsed<text_question> parse_detokenize_request(std::string_view text, const request_facts& facts) {
  parsed<text_question> out;
  json_document doc;
  request_problem problem;
  if (read_body(text, doc, problem)) {
    const field_reader body(doc.root(), "", problem);
    answer_style ignored;
    read_model(body, facts, ignored);
    out.value.what = text_question::kind::detokenize;
    if (!body.present("tokens")) body.refuse("tokens", "tokens: required, expected an array of token ids");
    out.value.ids = body.token_ids("tokens", facts.vocabulary);
  }
  if (problem.found()) out.refusal = problem.first();
  return out;
}

parsed<std::string> parse_abort_request(std::string_view text) {
  parsed<std::string> out;
  json_document doc;
  request_problem problem;
  if (read_body(text, doc, problem)) {
    const field_reader body(doc.root(), "", problem);
    if (!body.present("request_id")) body.refuse("request_id", "request_id: required, expected a string");
    out.value = body.string("request_id").value_or("");
  }
  if (problem.found()) out.refusal = problem.first();
  return out;
}

std::string accepted_request_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return {};
  for (const char c : id)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
          c == ':' || c == '-'))
      return {};
  return std::string(id);
}

std::string new_request_id() {
  const uint64_t high = (random_seed() & ~uint64_t{0xF000}) | 0x4000;
  const uint64_t low = (random_seed() >> 2) | uint64_t{1} << 63;
  return fmt::format("{:016x}{:016x}", high, low);
}

} // namespace troupe
