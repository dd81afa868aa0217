// A read-only file with positional reads: no file cursor, no demand-paged maps, so an I/O error is a value and not a
// signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace troupe {

// Owns the descriptor. Reads are const and may run from several threads at once.
class file {
public:
  // Opens a regular file (links are followed). Throws std::system_error naming the path: absent, no permission, not a
  // file.
  explicit file(std::filesystem::path);
  file(file&&) noexcept;
  file& operator=(file&&) noexcept;
  ~file();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; } // when it was opened

  // Fills all of `out` from `offset`, or throws std::system_error naming path, offset, bytes expected and bytes found,
  // and the tensor that the bytes belong to, where the caller gives one.
  void read(uint64_t offset, std::span<std::byte> out, std::string_view tensor = {}) const;

  // Asks the kernel to forget the cached pages of this file, so that loading weights does not push out what others
  // need. Advice: a file system that refuses it is no error.
  void drop_cache() const;

  // Tells the kernel that reads will be small and far apart, so that it does not read ahead. Advice, as above.
  void expect_random_reads() const;

  int descriptor() const { return descriptor_; } // still owned here; for read_ring

private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

} // namespace troupe
