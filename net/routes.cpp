// One table; a path is looked up after normalisation, so that no spelling of it gets round a guard.
#include "net/routes.h"

#include "net/api_errors.h"
#include "net/data_uri.h"
#include "net/fields.h"

#include <fmt/format.h>

namespace troupe {
namespace {

struct row {
  endpoint to;
  std::string_view path, methods; // methods: separated by blanks
  bool is_open;
};
constexpr row rows[] = {
    {endpoint::chat, "/v1/chat/completions", "POST", false},
    {endpoint::completions, "/v1/completions", "POST", false},
    {endpoint::chat_render, "/v1/chat/completions/render", "POST", false},
    {endpoint::completions_render, "/v1/completions/render", "POST", false},
    {endpoint::models, "/v1/models", "GET HEAD", false},
    {endpoint::model, "/v1/models/", "GET HEAD", false}, // a prefix: the rest is the id
    {endpoint::tokenize, "/tokenize", "POST", false},
    {endpoint::detokenize, "/detokenize", "POST", false},
    {endpoint::abort, "/abort", "POST", false},
    {endpoint::health, "/health", "GET HEAD", true},
    {endpoint::ping, "/ping", "GET HEAD POST", true},
    {endpoint::ready, "/ready", "GET HEAD", true},
    {endpoint::version, "/version", "GET HEAD", true},
    {endpoint::load, "/load", "GET HEAD", true},
    {endpoint::metrics, "/metrics", "GET HEAD", true},
    {endpoint::page, "/", "GET HEAD", true},
};

const row* row_of(endpoint e) {
  for (const auto& r : rows)
    if (r.to == e) return &r;
  return nullptr;
}

bool takes_json(endpoint e) {
  switch (e) {
  case endpoint::chat:
  case endpoint::completions:
  case endpoint::chat_render:
  case endpoint::completions_render:
  case endpoint::tokenize:
  case endpoint::detokenize:
  case endpoint::abort: return true;
  default: return false;
  }
}

bool has_word(std::string_view words, std::string_view word) {
  for (size_t from = 0; from < words.size();) {
    const size_t end = std::min(words.find(' ', from), words.size());
    if (words.substr(from, end - from) == word) return true;
    from = end + 1;
  }
  return false;
}

bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  constexpr std::string_view json = "application/json";
  if (type.size() != json.size()) return false;
  for (size_t i = 0; i < json.size(); i++)
    if ((type[i] >= 'A' && type[i] <= 'Z' ? type[i] + 32 : type[i]) != json[i]) return false;
  return true;
}

} // namespace

const char* handler_name(endpoint e) {
  const row* r = row_of(e);
  return !r ? "none" : e == endpoint::model ? "/v1/models/{id}" : r->path.data();
}

std::string normalised_path(std::string_view target) {
  // An absolute-form target ("http://host/path") means its path.
  if (const size_t scheme = target.find("://"); scheme != std::string_view::npos && scheme < target.find('?')) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string decoded, out;
  if (target.empty() || target.front() != '/' || !decode_percent(target, decoded)) return {};
  for (size_t from = 0; from < decoded.size();) {
    const size_t end = std::min(decoded.find('/', from), decoded.size());
    const auto part = std::string_view(decoded).substr(from, end - from);
    if (part == "..")
      out.resize(out.empty() ? 0 : out.rfind('/'));
    else if (!part.empty() && part != ".")
      out.append("/").append(part);
    from = end + 1;
  }
  return out.empty() ? "/" : out;
}

route find_route(std::string_view target, bool render) {
  route found;
  found.path = normalised_path(target);
  for (const auto& r : rows) {
    const bool is_model = r.to == endpoint::model;
    if (is_model ? !(found.path.starts_with(r.path) && found.path.size() > r.path.size()) : found.path != r.path)
      continue;
    if (!render && (r.to == endpoint::chat_render || r.to == endpoint::completions_render)) continue;
    found.to = r.to;
    found.is_open = r.is_open;
    if (is_model) found.model = found.path.substr(r.path.size());
  }
  return found;
}

std::optional<api_error> refuse_head(const route& to, const request_head& head) {
  if (head.method == "OPTIONS") return {};
  const row* r = row_of(to.to);
  if (!r) return make_error(404, fmt::format("Not Found: {}", quote(to.path.empty() ? head.target : to.path)));
  if (!has_word(r->methods, head.method)) return make_error(405, "Method Not Allowed");
  if (takes_json(to.to) && !is_json_type(head.content_type))
    return make_error(415, "Unsupported Media Type: Only 'application/json' is allowed");
  return {};
}

} // namespace troupe
