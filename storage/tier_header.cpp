// Writing and checking headers of tier files. Nothing in a file is believed before its sizes and its hash fit.
#include "storage/tier_header.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

namespace troupe {

namespace {

constexpr size_t max_fingerprint_bytes = 4096;

int64_t header_bytes(size_t fingerprint, size_t salt, size_t n_symbols) {
  return static_cast<int64_t>(sizeof(tier_header::fixed) + fingerprint + salt + n_symbols * sizeof(uint64_t));
}

uint64_t header_hash(std::vector<std::byte> header) {
  constexpr size_t at = offsetof(tier_header::fixed, header_hash);
  std::memset(header.data() + at, 0, sizeof(uint64_t));
  return tier_header::hash_of(header);
}

template <class T> std::string differs(const char* what, T expected, T found) {
  return fmt::format("{}: expected {}, found {}", what, expected, found);
}

} // namespace

int64_t tier_entry::file_bytes(size_t fingerprint_bytes) const {
  return header_bytes(fingerprint_bytes, salt.size(), symbols.size()) + payload_bytes;
}

uint64_t tier_header::hash_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::vector<std::byte> tier_header::bytes_of(const tier_entry& e, const tier_folder& folder,
                                             std::span<const std::byte> payload) {
  fixed h;
  h.kind = e.kind;
  h.rank = folder.rank;
  h.n_ranks = folder.n_ranks;
  h.fingerprint_bytes = static_cast<uint32_t>(folder.fingerprint.size());
  h.salt_bytes = static_cast<uint32_t>(e.salt.size());
  h.n_symbols = static_cast<uint32_t>(e.symbols.size());
  h.id = e.id;
  h.parent = e.parent;
  h.n_tokens = e.n_tokens;
  h.floor = e.floor;
  h.payload_bytes = static_cast<int64_t>(payload.size());
  h.payload_hash = hash_of(payload);
  std::vector<std::byte> out(
      static_cast<size_t>(header_bytes(folder.fingerprint.size(), e.salt.size(), e.symbols.size())));
  std::byte* at = out.data();
  const auto put = [&](const void* from, size_t n) {
    if (n > 0) std::memcpy(at, from, n);
    at += n;
  };
  put(&h, sizeof h);
  put(folder.fingerprint.data(), folder.fingerprint.size());
  put(e.salt.data(), e.salt.size());
  put(e.symbols.data(), e.symbols.size() * sizeof(uint64_t));
  h.header_hash = header_hash(out);
  std::memcpy(out.data(), &h, sizeof h);
  return out;
}

std::optional<size_t> tier_header::size_of(std::span<const std::byte> start) {
  fixed h;
  if (start.size() < sizeof h) return std::nullopt;
  std::memcpy(&h, start.data(), sizeof h);
  if (h.magic != fixed{}.magic || h.fingerprint_bytes > max_fingerprint_bytes ||
      h.salt_bytes > tier_entry::max_salt_bytes || h.n_symbols > tier_entry::max_symbols)
    return std::nullopt;
  return static_cast<size_t>(header_bytes(h.fingerprint_bytes, h.salt_bytes, h.n_symbols));
}

std::optional<std::string> tier_header::parse(std::span<const std::byte> header, const tier_folder& folder,
                                              int64_t file_bytes, tier_entry& out, uint64_t& payload_hash) {
  const auto size = size_of(header);
  if (!size) return "no header of a cache entry";
  if (*size > header.size()) return differs("header bytes", *size, header.size());
  fixed h;
  std::memcpy(&h, header.data(), sizeof h);
  if (h.version != fixed{}.version) return differs("version", fixed{}.version, h.version);
  if (header_hash({header.begin(), header.begin() + static_cast<std::ptrdiff_t>(*size)}) != h.header_hash)
    return "the header's checksum is wrong";
  const auto* at = reinterpret_cast<const char*>(header.data()) + sizeof h;
  if (std::string_view(at, h.fingerprint_bytes) != folder.fingerprint) return "made by another model or setting";
  at += h.fingerprint_bytes;
  if (h.rank != folder.rank) return differs("rank", folder.rank, h.rank);
  if (h.n_ranks != folder.n_ranks) return differs("ranks", folder.n_ranks, h.n_ranks);
  const auto want = static_cast<int64_t>(*size) + h.payload_bytes;
  if (h.payload_bytes < 0 || want != file_bytes) return differs("bytes", want, file_bytes);
  out.id = h.id;
  out.parent = h.parent;
  out.kind = h.kind;
  out.n_tokens = h.n_tokens;
  out.floor = h.floor;
  out.payload_bytes = h.payload_bytes;
  out.salt.assign(at, h.salt_bytes);
  at += h.salt_bytes;
  out.symbols.resize(h.n_symbols);
  if (h.n_symbols > 0) std::memcpy(out.symbols.data(), at, h.n_symbols * sizeof(uint64_t));
  payload_hash = h.payload_hash;
  return std::nullopt;
}

} // namespace troupe
