// Keys are kept and compared as SipHash-2-4 digests of 128 bits under a random secret of the process, in constant time:
// where two digests differ tells nothing about the keys.
#include "net/access.h"

#include "net/api_errors.h"

#include <bit>
#include <random>
#include <utility>

namespace troupe {
namespace {

// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012).
struct sip_state {
  uint64_t a, b, c, d;
  void rounds(int n) {
    for (; n > 0; n--) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  }
  void absorb(uint64_t word) {
    d ^= word;
    rounds(2);
    a ^= word;
  }
};

std::array<uint64_t, 2> sip_hash(std::array<uint64_t, 2> secret, std::string_view text) {
  const auto [k0, k1] = secret;
  sip_state s{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261,
              k1 ^ 0x7465646279746573};
  uint64_t word = 0;
  for (size_t i = 0; i < text.size(); i++) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(text[i])) << (8 * (i % 8));
    if (i % 8 == 7) s.absorb(std::exchange(word, 0));
  }
  s.absorb(word | static_cast<uint64_t>(text.size()) << 56);
  std::array<uint64_t, 2> out{};
  s.c ^= 0xee;
  s.rounds(4);
  out[0] = s.a ^ s.b ^ s.c ^ s.d;
  s.b ^= 0xdd;
  s.rounds(4);
  out[1] = s.a ^ s.b ^ s.c ^ s.d;
  return out;
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
  std::random_device device;
  for (auto& word : secret_) word = static_cast<uint64_t>(device()) << 32 | device();
  for (const auto& k : keys)
    if (!k.empty()) keys_.push_back(digest_of(k));
}

key_guard::digest key_guard::digest_of(std::string_view key) const { return sip_hash(secret_, key); }

bool key_guard::is_known(std::string_view key) const {
  const digest given = digest_of(key);
  uint64_t known = 0;
  for (const auto& k : keys_) { // every key is looked at
    const volatile uint64_t difference = (k[0] ^ given[0]) | (k[1] ^ given[1]);
    known |= static_cast<uint64_t>(difference == 0);
  }
  return known != 0;
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
