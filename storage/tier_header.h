// The header of a tier file: its bytes, and what is wrong with some that were read.
#pragma once

#include "storage/tier_files.h"

#include <string>
#include <vector>

namespace troupe {

struct tier_header {
  // Little-endian, no gaps; fingerprint, salt and symbols follow it in the file, then the payload.
  struct fixed {
    uint32_t magic = 0x52544954; // "TITR"
    uint32_t version = 1;
    uint32_t kind = 0;
    int32_t rank = 0, n_ranks = 1;
    uint32_t fingerprint_bytes = 0, salt_bytes = 0, n_symbols = 0;
    uint64_t id = 0, parent = 0;
    int64_t n_tokens = 0, floor = 0, payload_bytes = 0;
    uint64_t payload_hash = 0; // XXH3
    uint64_t header_hash = 0;  // XXH3 of this with 0 here, and of what follows it
  };
  static_assert(sizeof(fixed) == 88);

  static std::vector<std::byte> bytes_of(const tier_entry&, const tier_folder&, std::span<const std::byte> payload);
  // Bytes of the header that begins so. nullopt: it does not.
  static std::optional<size_t> size_of(std::span<const std::byte> start);
  // The entry, or what is wrong. `file_bytes`: size of the whole file.
  static std::optional<std::string> parse(std::span<const std::byte> header, const tier_folder&, int64_t file_bytes,
                                          tier_entry&, uint64_t& payload_hash);
  static uint64_t hash_of(std::span<const std::byte>);
};

} // namespace troupe
