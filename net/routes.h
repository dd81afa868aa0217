// Which endpoint a request line means, and whether its head may pass: path, method, media type. No socket, no body.
// Spec: api.md sections 0, 1.
#pragma once

#include "actors/turn_sink.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

enum class endpoint : uint8_t {
  none, // unknown path
  chat,
  completions,
  chat_render,
  completions_render,
  models,
  model,
  tokenize,
  detokenize,
  abort,
  health,
  ping,
  ready,
  version,
  load,
  metrics,
  page,
};
const char* handler_name(endpoint); // the path pattern, for metrics

// The part of a request's head that decisions are made from. Views into the parser's fields.
struct request_head {
  std::string_view method, target;
  std::string_view content_type, authorization, request_id, origin;
  bool has_body = false;
};

struct route {
  endpoint to = endpoint::none;
  std::string path;     // normalised: percent-decoded, no "//", no dot segments
  std::string model;    // of /v1/models/{id}
  bool is_open = false; // answers without an API key
};
inline bool is_turn(endpoint e) { return e == endpoint::chat || e == endpoint::completions; }
// Never fails: an unknown path has endpoint none. With `render` off, the render endpoints are unknown.
route find_route(std::string_view target, bool render);
// 404, 405 or 415 by the head alone; nothing if it may pass. OPTIONS passes everywhere.
std::optional<api_error> refuse_head(const route&, const request_head&);

// Percent-decodes and resolves a request target's path; the query is dropped. Empty: not a path.
std::string normalised_path(std::string_view target);

} // namespace troupe
