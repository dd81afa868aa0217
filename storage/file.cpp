// pread until the buffer is full; every failure says which file, where, and how far it got.
#include "storage/file.h"

#include "storage/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe {
namespace {

// One pread moves at most 0x7ffff000 bytes on Linux; asking for less keeps the count inside ssize_t everywhere.
constexpr size_t max_read_bytes = size_t{1} << 30;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

ssize_t pread_or_fault(int descriptor, std::byte* to, size_t n_bytes, uint64_t offset) {
  if (fault::at("file.short_read")) return 0;
  if (fault::at("file.interrupted")) {
    errno = EINTR;
    return -1;
  }
  if (fault::at("file.io_error")) {
    errno = EIO;
    return -1;
  }
  return ::pread(descriptor, to, n_bytes, static_cast<off_t>(offset));
}

} // namespace

file::file(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  // Looked at before it is opened: opening a FIFO for reading would wait for a writer.
  if (::stat(path_.c_str(), &status) != 0) fail(errno, path_.string());
  if (S_ISDIR(status.st_mode)) fail(EISDIR, path_.string());
  if (!S_ISREG(status.st_mode)) fail(EINVAL, path_.string() + ": not a regular file");
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(errno, path_.string());
  if (::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    fail(error, path_.string());
  }
  size_bytes_ = static_cast<uint64_t>(status.st_size);
}

file::file(file&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_bytes_(other.size_bytes_) {
}

file& file::operator=(file&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

file::~file() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void file::read(uint64_t offset, std::span<std::byte> out, std::string_view tensor) const {
  size_t done = 0;
  while (done < out.size()) {
    const size_t n_wanted = std::min(out.size() - done, max_read_bytes);
    const ssize_t n = pread_or_fault(descriptor_, out.data() + done, n_wanted, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : EIO;
      const std::string subject = tensor.empty() ? "" : fmt::format("tensor '{}': ", tensor);
      fail(error, fmt::format("{}: {}{} at offset {}: expected {} bytes, found {} (the file had {} bytes when opened)",
                              path_.string(), subject, n < 0 ? "read failed" : "short read", offset, out.size(), done,
                              size_bytes_));
    }
    done += static_cast<size_t>(n);
  }
}

void file::drop_cache() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

void file::expect_random_reads() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM); }

} // namespace troupe
