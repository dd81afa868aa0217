// Entries of a cache as files: checksummed, seen whole or not at all, found again after a restart. Knows no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// What the header of a file says besides its payload. Ids are the owner's: they are never used twice, and a parent is
// named by its id, so that no hash decides what an entry is.
struct tier_entry {
  uint64_t id = 0, parent = 0; // 0: no parent
  uint32_t kind = 0;
  int64_t n_tokens = 0, floor = 0;
  std::string salt;              // at most max_salt_bytes
  std::vector<uint64_t> symbols; // at most max_symbols
  int64_t payload_bytes = 0;

  static constexpr size_t max_salt_bytes = 4096, max_symbols = 65536;
  int64_t file_bytes(size_t fingerprint_bytes) const;
};

// Why something could not be done; the caller goes on without it.
struct tier_error {
  int error = 0; // errno; EBADMSG: the file is not what was written
  std::string what;
};

struct tier_folder {
  std::filesystem::path path;    // of this rank alone
  std::string fingerprint;       // entries of another one are never shown
  int32_t rank = 0, n_ranks = 1; // the same
  int64_t max_foreign_bytes = 0; // of other fingerprints' entries: above it the ones used last the longest ago go
};

// One owner, one thread. Files lie in path/fingerprint/xx/; a write goes to a temporary name and is renamed, a scan
// reads headers only. Fault points: tier_files.no_access, .no_space, .write_error, .read_error, .short_read, .torn.
class tier_files {
public:
  explicit tier_files(tier_folder);
  tier_files(tier_files&&) = delete;
  ~tier_files();

  // Makes the folder and takes it for this process. Without it every call below is refused.
  std::optional<tier_error> open();
  // All sound entries. Unfinished, broken and forbidden files are removed with a log line.
  std::vector<tier_entry> scan();
  // Refused: one that is there already. After a failure nothing of it is left.
  std::optional<tier_error> write(const tier_entry&, std::span<const std::byte> payload);
  // The payload of an entry, checked. A broken file is removed. Several threads may read different entries at once,
  // while nothing else is called.
  std::optional<tier_error> read(uint64_t id, std::vector<std::byte>& payload);
  std::optional<tier_error> read(uint64_t id, std::vector<uint8_t>& payload); // as messages carry it
  void remove(uint64_t id);                                                   // absent ones too
  // A short text beside the entries, replaced as a whole. Empty: there is none, or a broken one.
  std::optional<tier_error> write_note(const std::string& name, std::string_view text);
  std::string read_note(const std::string& name);

  int64_t foreign_bytes() const { return foreign_bytes_; } // left by open()
  int64_t bytes_written() const { return bytes_written_; }
  int64_t n_files_written() const { return n_files_written_; }
  std::filesystem::path path_of(uint64_t id) const;

private:
  std::optional<tier_error> make_file(const std::filesystem::path&, const tier_entry&, std::span<const std::byte>);
  void prune_foreign();
  template <class Byte> std::optional<tier_error> read_payload(uint64_t id, std::vector<Byte>& payload);

  tier_folder folder_;
  std::filesystem::path own_;
  int lock_ = -1; // descriptor
  int64_t foreign_bytes_ = 0, bytes_written_ = 0, n_files_written_ = 0;
};

} // namespace troupe
