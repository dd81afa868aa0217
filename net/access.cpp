// A comparison looks at every byte of every key and takes the same time wherever the difference is.
#include "net/access.h"

#include "net/api_errors.h"

namespace troupe {
namespace {

// Time depends on the candidate's length alone, not on the key.
bool equal_in_constant_time(std::string_view key, std::string_view candidate) {
  volatile unsigned difference = key.size() == candidate.size() ? 0 : 1;
  for (size_t i = 0; i < candidate.size(); i++)
    difference = difference | static_cast<unsigned>(static_cast<unsigned char>(candidate[i]) ^
                                                    static_cast<unsigned char>(key[i % key.size()]));
  return difference == 0;
}

// The token of "Bearer <token>", the scheme in any case; empty if it is no such header.
std::string_view bearer_token(std::string_view header) {
  constexpr std::string_view scheme = "bearer ";
  if (header.size() <= scheme.size()) return {};
  for (size_t i = 0; i < scheme.size(); i++)
    if ((header[i] >= 'A' && header[i] <= 'Z' ? header[i] + 32 : header[i]) != scheme[i]) return {};
  header.remove_prefix(scheme.size());
  while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
  while (!header.empty() && header.back() == ' ') header.remove_suffix(1);
  return header;
}

bool is_local(std::string_view origin) {
  for (const std::string_view host : {"http://localhost", "http://127.0.0.1"}) {
    if (!origin.starts_with(host)) continue;
    const auto rest = origin.substr(host.size());
    if (rest.empty() || (rest[0] == ':' && rest.find_first_not_of("0123456789", 1) == std::string_view::npos))
      return true;
  }
  return false;
}

} // namespace

key_guard::key_guard(const std::vector<std::string>& keys) {
  for (const auto& k : keys)
    if (!k.empty()) keys_.push_back(k);
}

bool key_guard::is_known(std::string_view key) const {
  bool known = false;
  for (const auto& k : keys_) known = equal_in_constant_time(k, key) || known;
  return known;
}

std::optional<api_error> key_guard::refuse(const route& to, const request_head& head) const {
  if (keys_.empty() || to.is_open || head.method == "OPTIONS") return {};
  const auto token = bearer_token(head.authorization);
  if (!token.empty() && is_known(token)) return {};
  return make_error(401, token.empty() ? "Missing API key: send 'Authorization: Bearer <key>'" : "Invalid API key");
}

std::string allowed_origin(const settings& config, std::string_view origin) {
  if (origin.empty()) return {};
  if (config.allowed_origins.empty()) {
    if (!config.api_keys.empty()) return "*";
    return is_local(origin) ? std::string(origin) : std::string();
  }
  for (const auto& allowed : config.allowed_origins) {
    if (allowed == "*") return "*";
    if (allowed == origin) return allowed;
  }
  return {};
}

} // namespace troupe
