// What request parsing needs to know, for tests: the released vocabulary size, byte-valued tokens.
#pragma once

#include "net/request_facts.h"

#include <memory>

namespace troupe {

// Ids below 256 stand for one byte each; larger ones for "<id>".
inline std::shared_ptr<request_facts> make_test_facts() {
  auto f = std::make_shared<request_facts>();
  f->model_names = {"tiny", "alias/of-tiny"};
  f->vocabulary = 129280;
  f->max_context = 4096;
  f->eos = 1;
  f->default_top_p = 0.95f;
  f->fingerprint = "fp_test";
  f->started_at = 1790000000;
  f->encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  f->token_bytes = [](int32_t id) {
    static const std::string bytes = [] {
      std::string all;
      for (int i = 0; i < 256; i++) all += static_cast<char>(i);
      return all;
    }();
    return id < 256 ? std::string_view(bytes).substr(static_cast<size_t>(id), 1) : std::string_view("<x>");
  };
  f->decode = [](const std::vector<int32_t>& ids) {
    std::string s;
    for (const auto id : ids) s += static_cast<char>(id);
    return s;
  };
  return f;
}

} // namespace troupe
