// Who may call: API keys in constant time, and the CORS answer for browsers. api.md section 0.
#pragma once

#include "actors/settings.h"
#include "net/routes.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class key_guard {
public:
  explicit key_guard(const std::vector<std::string>& keys);
  // 401 unless the route is open, no key is configured, or the head carries a right one.
  std::optional<api_error> refuse(const route&, const request_head&) const;

private:
  using digest = std::array<uint64_t, 2>;
  digest digest_of(std::string_view) const;
  bool is_known(std::string_view key) const;
  std::array<uint64_t, 2> secret_; // of this process; what a digest looks like tells nothing about the key
  std::vector<digest> keys_;
};

// Value of Access-Control-Allow-Origin for a request's Origin; empty: no CORS headers. Without a list: every origin
// when keys are set, else pages of this machine only.
std::string allowed_origin(const settings&, std::string_view origin);

} // namespace troupe
