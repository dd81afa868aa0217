// Small answers are written here; parsing is openai_request's, the wording of metrics is metrics_text's.
#include "net/service.h"

#include "actors/queue_limit.h"
#include "net/answer_text.h"
#include "net/api_errors.h"
#include "net/fields.h"
#include "net/json_text.h"
#include "net/metrics_text.h"

#include <fmt/format.h>

#include <chrono>
#include <span>

namespace troupe {
namespace {

// An engine whose step has not come back for so long counts as dead for /health; one without a step is idle or paused.
constexpr int64_t stall_limit_us = 60'000'000;

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_healthy(const counters& n) {
  const phase now = n.now;
  if (now != phase::ready && now != phase::draining) return false;
  const int64_t sent_us = n.step_sent_us;
  return sent_us == 0 || now_us() - sent_us < stall_limit_us;
}

// ,"name":["..."]; nothing for an empty list.
std::string listed(std::string_view name, const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) {
    out += out.empty() ? fmt::format(",\"{}\":[", name) : ",";
    append_json_string(out, text);
  }
  return out.empty() ? out : out + "]";
}

http_reply ready_reply(const counters& n, bool draining) {
  http_reply r;
  const phase now = n.now;
  if (draining) {
    r.status = 503;
    r.body = "{\"status\":\"draining\"}";
  } else if (now == phase::ready) {
    r.body = "{\"status\":\"ready\"" + listed("parked_kernels", parked_kernels(n)) + listed("alarms", alarms(n)) + "}";
  } else {
    r.status = 503;
    r.body = fmt::format("{{\"status\":\"{}\",\"phase\":\"{}\",\"progress\":{:.2f}}}",
                         now == phase::failed       ? "failed"
                         : now == phase::restarting ? "restarting"
                                                    : "loading",
                         name(now), n.progress.load());
  }
  return r;
}

void append_model(std::string& out, const request_facts& facts, std::string_view name) {
  out += "{\"id\":";
  append_json_string(out, name);
  out += fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"troupe\",\"root\":", facts.started_at);
  append_json_string(out, facts.model_names.front());
  out += fmt::format(",\"parent\":null,\"max_model_len\":{},\"permission\":[{{\"id\":\"modelperm-troupe\",\"object\":"
                     "\"model_permission\",\"created\":{},\"allow_create_engine\":false,\"allow_sampling\":true,"
                     "\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
                     "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}",
                     facts.max_context, facts.started_at);
}

std::string models_body(const request_facts& facts) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < facts.model_names.size(); i++) {
    if (i) out += ',';
    append_model(out, facts, facts.model_names[i]);
  }
  return out + "]}";
}

const char* parser_start_name(parser_start s) {
  return s == parser_start::reasoning ? "REASONING" : s == parser_start::tools ? "TOOLS" : "CONTENT";
}

void append_sampling(std::string& out, const chat_request& r) {
  const auto& p = r.sampling;
  out += fmt::format("{{\"temperature\":{},\"top_p\":{},\"top_k\":{},\"min_p\":{},\"frequency_penalty\":{},"
                     "\"presence_penalty\":{},\"repetition_penalty\":{},\"n\":{},\"max_tokens\":",
                     p.temperature, p.top_p, p.top_k, p.min_p, p.frequency_penalty, p.presence_penalty,
                     p.repetition_penalty, r.n);
  const int64_t most = r.max_tokens < 0 ? r.default_max_tokens : r.max_tokens;
  out += most < 0 ? "null" : std::to_string(most);
  out += fmt::format(",\"min_tokens\":{},\"ignore_eos\":{},\"stop\":[", p.min_tokens, p.ignore_eos);
  for (size_t i = 0; i < r.stop.size(); i++) {
    if (i) out += ',';
    append_json_string(out, r.stop[i]);
  }
  out += "],\"stop_token_ids\":";
  append_ids(out, p.stop_ids);
  out += '}';
}

void append_render(std::string& out, const chat_request& asked, std::span<const size_t> image_sizes,
                   const text_answer& a) {
  out += "{\"prompt\":";
  append_json_string(out, a.text);
  out += ",\"prompt_token_ids\":";
  append_ids(out, a.ids);
  out += ",\"images\":[";
  for (size_t i = 0; i < a.images.size(); i++) { // a source is named by its place in the request and its size
    const auto image = static_cast<size_t>(a.images[i]);
    out += fmt::format("{}{{\"source\":{{\"image\":{},\"size_bytes\":{}}}}}", i ? "," : "", image,
                       image < image_sizes.size() ? image_sizes[image] : 0);
  }
  out += fmt::format("],\"parser_start\":\"{}\",\"sampling\":", parser_start_name(a.start));
  append_sampling(out, asked);
  out += '}';
}

void append_tokens(std::string& out, const request_facts& facts, const text_question& asked, const text_answer& a) {
  out += fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", a.ids.size(), facts.max_context);
  append_ids(out, a.ids);
  out += ",\"token_strs\":";
  if (asked.wants_token_strings) {
    out += '[';
    for (size_t i = 0; i < a.token_strings.size(); i++) {
      if (i) out += ',';
      append_json_string(out, a.token_strings[i]);
    }
    out += ']';
  } else {
    out += "null";
  }
  out += '}';
}

} // namespace

service::service(settings config, std::shared_ptr<counters> numbers, std::string version)
    : config_(std::move(config)), version_(std::move(version)), numbers_(std::move(numbers)), guard_(config_.api_keys),
      bodies_(std::make_shared<body_budget>()) {
  bodies_->limit_bytes = config_.max_bodies_bytes;
}

std::string service::page_text() const {
  std::string out =
      fmt::format("troupe {}: an actor runtime that serves a model over the OpenAI HTTP API.\n", version_);
  if (const auto p = port()) {
    for (const auto& m : p->facts->model_names) out += "Serving " + m + ".\n";
    out += fmt::format("Context: {} tokens.\n", p->facts->max_context);
  } else {
    out += fmt::format("Loading ({}).\n", name(numbers_->now));
  }
  return out + "Endpoints: /v1/chat/completions /v1/completions /v1/models /tokenize /detokenize /ready /metrics\n";
}

void service::attach(std::shared_ptr<const engine_port> port) {
  std::lock_guard lock(port_mutex_);
  port_ = std::move(port);
}

std::shared_ptr<const engine_port> service::port() const {
  std::lock_guard lock(port_mutex_);
  return port_;
}

std::optional<http_reply> service::answer_head(const route& to, const request_head& head) const {
  if (head.method == "OPTIONS") {
    http_reply r;
    r.status = 204;
    return r;
  }
  if (const auto e = guard_.refuse(to, head)) return refuse(*e);
  if (const auto e = refuse_head(to, head)) return refuse(*e);
  if (is_turn(to.to))
    if (const auto e = refuse_early(*numbers_, arriving_, config_.max_queue, config_.max_running)) {
      ++numbers_->refused;
      return refuse(*e);
    }
  return {};
}

// Why no work is taken now; nothing if it is.
std::optional<api_error> service::unready() const {
  if (is_draining()) return make_error(503, "The server is shutting down", {}, 5);
  const phase now = numbers_->now;
  if (now == phase::failed) return make_error(503, "The engine has failed", {}, 30);
  if (now == phase::restarting) return make_error(503, "The engine is being restarted", {}, 2);
  if (!port() || now != phase::ready)
    return make_error(
        503, fmt::format("The model is loading (phase {}, {:.0f} %)", name(now), 100 * numbers_->progress), {}, 30);
  return {};
}

http_reply service::answer_plain(const route& to) const {
  http_reply r;
  switch (to.to) {
  case endpoint::health:
  case endpoint::ping:
    r.status = is_healthy(*numbers_) ? 200 : 503;
    r.content_type.clear();
    return r;
  case endpoint::ready: return ready_reply(*numbers_, is_draining());
  case endpoint::version: r.body = fmt::format("{{\"version\":\"{}\"}}", version_); return r;
  case endpoint::load:
    r.body = fmt::format("{{\"server_load\":{}}}", counts_.in_flight.load(std::memory_order_relaxed));
    return r;
  case endpoint::metrics:
    r.content_type = "text/plain; version=0.0.4; charset=utf-8";
    r.body = metrics_text();
    return r;
  default:
    r.content_type = "text/plain; charset=utf-8";
    r.body = page_text();
    return r;
  }
}

std::string service::metrics_text() const {
  const auto p = port();
  return troupe::metrics_text(*numbers_, counts_, bodies_->used_bytes,
                              p ? p->facts->model_names.front() : std::string(), p ? p->facts->block_tokens : 0);
}

bool body_claim::grow_to(int64_t n_bytes) {
  const int64_t more = n_bytes - held_.load();
  if (more <= 0) return true;
  if ((from_->used_bytes += more) > from_->limit_bytes) {
    from_->used_bytes -= more;
    return false;
  }
  held_ += more;
  return true;
}

http_reply service::answer_abort(std::string_view body) {
  const auto asked = parse_abort_request(body);
  if (asked.refusal) return refuse(*asked.refusal);
  const size_t n = turns_.abort(asked.value);
  if (n == 0)
    return refuse(make_error(404, fmt::format("No request `{}` is running.", quote(asked.value)), "request_id"));
  http_reply r;
  r.body = "{\"request_id\":";
  append_json_string(r.body, asked.value);
  r.body += fmt::format(",\"aborted\":{}}}", n);
  return r;
}

service::outcome service::answer(const route& to, const request_head&, std::string_view body, std::string_view id) {
  outcome out;
  out.asked = to.to;
  const bool plain = to.is_open;
  if (plain) {
    out.reply = answer_plain(to);
    return out;
  }
  if (to.to == endpoint::abort) { // also while the server drains
    out.reply = answer_abort(body);
    return out;
  }
  out.port = port();
  const bool lists = to.to == endpoint::models || to.to == endpoint::model;
  if (const auto e = unready(); e && !(lists && out.port)) {
    out.reply = refuse(*e);
    return out;
  }
  const request_facts& facts = *out.port->facts;
  const auto take = [&]<class T>(parsed<T> p, T& into, outcome::kind what) {
    if (p.refusal) {
      out.reply = refuse(*p.refusal);
      return;
    }
    out.what = what;
    into = std::move(p.value);
  };
  switch (to.to) {
  case endpoint::models: out.reply.body = models_body(facts); break;
  case endpoint::model:
    if (is_served(facts, to.model))
      append_model(out.reply.body, facts, to.model);
    else
      out.reply = refuse(make_error(404, fmt::format("The model `{}` does not exist.", quote(to.model)), "model"));
    break;
  case endpoint::chat: take(parse_chat_request(body, facts, id), out.turn, outcome::kind::turn); break;
  case endpoint::completions: take(parse_completion_request(body, facts, id), out.turn, outcome::kind::turn); break;
  case endpoint::tokenize: take(parse_tokenize_request(body, facts), out.question, outcome::kind::question); break;
  case endpoint::detokenize: take(parse_detokenize_request(body, facts), out.question, outcome::kind::question); break;
  case endpoint::chat_render:
  case endpoint::completions_render: {
    take(to.to == endpoint::chat_render ? parse_chat_request(body, facts, id, request_use::render)
                                        : parse_completion_request(body, facts, id, request_use::render),
         out.turn, outcome::kind::question);
    out.question.what = text_question::kind::render;
    out.question.request = std::move(out.turn.request);
    out.question.expand_images = true;
    break;
  }
  default: break;
  }
  for (const auto& file : out.question.request.image_files) out.image_sizes.push_back(file.size());
  return out;
}

http_reply service::answer_question(const outcome& asked, const text_answer& a) const {
  if (a.failure.status != 0) return refuse(a.failure);
  http_reply r;
  switch (asked.question.what) {
  case text_question::kind::render: append_render(r.body, asked.question.request, asked.image_sizes, a); break;
  case text_question::kind::detokenize:
    r.body = "{\"prompt\":";
    append_json_string(r.body, a.text);
    r.body += '}';
    break;
  default: append_tokens(r.body, *asked.port->facts, asked.question, a);
  }
  return r;
}

} // namespace troupe
