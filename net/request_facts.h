// What parsing a request needs to know about the server: settings, and facts of the loaded model.
#pragma once

#include "actors/settings.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct request_facts {
  settings config;
  std::vector<std::string> model_names; // first: default
  int64_t vocabulary = 0;               // ids a client may name are below
  int64_t max_context = 0, block_tokens = 0;
  int32_t eos = -1;
  std::vector<int32_t> suppressed; // ids that are not sampled unless a request names them (chat.md 5.7)
  float default_temperature = 1, default_top_p = 1;
  std::string fingerprint;                                        // system_fingerprint
  int64_t started_at = 0;                                         // unix seconds: `created` of the model cards
  std::function<std::vector<int32_t>(std::string_view)> encode;   // text -> ids, no token added
  std::function<std::string_view(int32_t)> token_bytes;           // of one id
  std::function<std::string(const std::vector<int32_t>&)> decode; // special tokens kept
};

// True if `name` is one of the served names.
bool is_served(const request_facts&, std::string_view name);

} // namespace troupe
