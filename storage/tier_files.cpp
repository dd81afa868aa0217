// Writing, reading and finding the files of a tier. Everything that the file system refuses is a value here.
#include "storage/tier_files.h"

#include "storage/check.h"
#include "storage/log.h"
#include "storage/tier_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe {

namespace fs = std::filesystem;

namespace {

constexpr const char* suffix = ".tier";
constexpr const char* unfinished = ".part";
constexpr size_t first_read_bytes = 4096; // most headers are shorter
constexpr int n_logged = 8;               // broken files of one scan that get a line of their own

tier_error failure(int error, const fs::path& path, const char* what) {
  return {error, fmt::format("{}: {}: {}", path.string(), what, std::strerror(error))};
}

class descriptor {
public:
  explicit descriptor(int fd) : fd_(fd) {}
  descriptor(descriptor&&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

private:
  int fd_;
};

int open_file(const fs::path& path, int flags) {
  if (fault::at("tier_files.no_access")) return errno = EACCES, -1; // root, who runs tests, is never refused
  return ::open(path.c_str(), flags | O_CLOEXEC, 0600);
}

int write_all(int fd, std::span<const std::byte> bytes) { // errno or 0
  while (!bytes.empty()) {
    if (fault::at("tier_files.no_space")) return ENOSPC;
    if (fault::at("tier_files.write_error")) return EIO;
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

int read_all(int fd, int64_t offset, std::span<std::byte> out, size_t& done) {
  for (done = 0; done < out.size();) {
    if (fault::at("tier_files.read_error")) return EIO;
    if (fault::at("tier_files.short_read")) return 0;
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, offset + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return 0;
    done += static_cast<size_t>(n);
  }
  return 0;
}

// Header and size of the open file; an error where they are none of ours.
std::optional<tier_error> read_header(int fd, const fs::path& path, const tier_folder& folder, tier_entry& entry,
                                      size_t& header_bytes, uint64_t& payload_hash) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return failure(errno, path, "size");
  std::vector<std::byte> bytes(std::min<size_t>(first_read_bytes, static_cast<size_t>(status.st_size)));
  size_t done = 0;
  if (const int e = read_all(fd, 0, bytes, done)) return failure(e, path, "read");
  const auto size = tier_header::size_of(std::span(bytes).first(done));
  if (size && *size > done && static_cast<int64_t>(*size) <= status.st_size) {
    bytes.resize(*size);
    if (const int e = read_all(fd, 0, bytes, done)) return failure(e, path, "read");
  }
  const auto why = tier_header::parse(std::span(bytes).first(done), folder, status.st_size, entry, payload_hash);
  if (why) return tier_error{EBADMSG, path.string() + ": " + *why};
  header_bytes = *size;
  return std::nullopt;
}

int64_t bytes_below(const fs::path& path) {
  int64_t sum = 0;
  std::error_code e;
  for (fs::recursive_directory_iterator at(path, e), end; !e && at != end; at.increment(e)) {
    std::error_code none;
    if (at->is_regular_file(none)) sum += static_cast<int64_t>(at->file_size(none));
  }
  return sum;
}

} // namespace

tier_files::tier_files(tier_folder folder) : folder_(std::move(folder)), own_(folder_.path / folder_.fingerprint) {}

tier_files::~tier_files() {
  if (lock_ >= 0) ::close(lock_);
}

fs::path tier_files::path_of(uint64_t id) const {
  return own_ / fmt::format("{:02x}", id & 0xFF) / (fmt::format("{:016x}", id) + suffix);
}

std::optional<tier_error> tier_files::open() {
  std::error_code e;
  fs::create_directories(own_, e);
  if (e) return failure(e.value(), own_, "make folder");
  const auto path = folder_.path / "lock";
  lock_ = open_file(path, O_RDWR | O_CREAT);
  if (lock_ < 0) return failure(errno, path, "open");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(std::exchange(lock_, -1));
    return failure(error, path, "another process has this folder");
  }
  fs::last_write_time(own_, fs::file_time_type::clock::now(), e); // what prune_foreign of another goes by
  prune_foreign();
  return std::nullopt;
}

void tier_files::prune_foreign() {
  struct other {
    fs::file_time_type when;
    fs::path path;
    int64_t size_bytes;
  };
  std::vector<other> all;
  std::error_code e;
  for (fs::directory_iterator at(folder_.path, e), end; !e && at != end; at.increment(e)) {
    std::error_code none;
    if (at->is_directory(none) && at->path() != own_)
      all.push_back({at->last_write_time(none), at->path(), bytes_below(at->path())});
  }
  std::sort(all.begin(), all.end(), [](const other& a, const other& b) { return a.when > b.when; });
  foreign_bytes_ = 0;
  for (const auto& o : all) {
    if (foreign_bytes_ + o.size_bytes <= folder_.max_foreign_bytes) {
      foreign_bytes_ += o.size_bytes;
      continue;
    }
    spdlog::info("cache on disk: {} was made by another model or setting, removed for room", o.path.string());
    fs::remove_all(o.path, e);
  }
}

std::vector<tier_entry> tier_files::scan() {
  std::vector<tier_entry> out;
  if (lock_ < 0) return out;
  int n_broken = 0;
  std::error_code e;
  for (fs::recursive_directory_iterator at(own_, e), end; !e && at != end; at.increment(e)) {
    std::error_code none;
    const auto& path = at->path();
    if (!at->is_regular_file(none)) continue;
    if (path.extension() == unfinished) {
      fs::remove(path, none);
      continue;
    }
    if (path.extension() != suffix) continue; // not ours to judge
    const descriptor fd(open_file(path, O_RDONLY));
    tier_entry entry;
    size_t header_bytes = 0;
    uint64_t payload_hash = 0;
    auto why = fd.get() < 0 ? failure(errno, path, "open")
                            : read_header(fd.get(), path, folder_, entry, header_bytes, payload_hash);
    if (!why && path_of(entry.id) != path) why = tier_error{EBADMSG, path.string() + ": under a wrong name"};
    if (!why) {
      out.push_back(std::move(entry));
      continue;
    }
    if (++n_broken <= n_logged) spdlog::warn("cache on disk: left out {}", why->what);
    // What may not be read is of no use either, and its number, which nobody knows of now, will be given again.
    if (why->error == EBADMSG || why->error == EACCES) fs::remove(path, none);
  }
  if (e) spdlog::warn("cache on disk: {}: {}", own_.string(), e.message());
  if (n_broken > n_logged) spdlog::warn("cache on disk: {} files left out in all", n_broken);
  return out;
}

std::optional<tier_error> tier_files::make_file(const fs::path& path, const tier_entry& entry,
                                                std::span<const std::byte> payload) {
  descriptor fd(open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  if (fd.get() < 0) return failure(errno, path, "create");
  const auto header = tier_header::bytes_of(entry, folder_, payload);
  if (const int e = write_all(fd.get(), header)) return failure(e, path, "write");
  const bool is_torn = fault::at("tier_files.torn"); // as after a power cut: the name is there, the bytes are not
  if (const int e = write_all(fd.get(), is_torn ? payload.first(payload.size() / 2) : payload))
    return failure(e, path, "write");
  if (fd.close() != 0) return failure(errno, path, "close");
  bytes_written_ += static_cast<int64_t>(header.size() + payload.size());
  ++n_files_written_;
  return std::nullopt;
}

std::optional<tier_error> tier_files::write(const tier_entry& entry, std::span<const std::byte> payload) {
  const auto path = path_of(entry.id);
  if (lock_ < 0) return failure(EBADF, path, "the folder is not open");
  if (entry.salt.size() > tier_entry::max_salt_bytes || entry.symbols.size() > tier_entry::max_symbols)
    return failure(EMSGSIZE, path, "write");
  std::error_code e;
  if (fs::exists(path, e)) return failure(EEXIST, path, "write");
  fs::create_directory(path.parent_path(), e);
  if (e) return failure(e.value(), path.parent_path(), "make folder");
  auto part = path;
  part.replace_extension(unfinished);
  auto failed = make_file(part, entry, payload);
  if (!failed && ::rename(part.c_str(), path.c_str()) != 0) failed = failure(errno, path, "rename");
  if (failed) fs::remove(part, e);
  return failed;
}

template <class Byte> std::optional<tier_error> tier_files::read_payload(uint64_t id, std::vector<Byte>& payload) {
  const auto path = path_of(id);
  if (lock_ < 0) return failure(EBADF, path, "the folder is not open");
  const descriptor fd(open_file(path, O_RDONLY));
  if (fd.get() < 0) return failure(errno, path, "open");
  tier_entry entry;
  size_t header_bytes = 0, done = 0;
  uint64_t payload_hash = 0;
  auto why = read_header(fd.get(), path, folder_, entry, header_bytes, payload_hash);
  if (!why) {
    payload.resize(static_cast<size_t>(entry.payload_bytes));
    const auto bytes = std::as_writable_bytes(std::span(payload));
    if (const int e = read_all(fd.get(), static_cast<int64_t>(header_bytes), bytes, done))
      why = failure(e, path, "read");
    else if (done < bytes.size() || tier_header::hash_of(bytes) != payload_hash)
      why = tier_error{EBADMSG, fmt::format("{}: expected {} sound bytes, found {} that are not what was written",
                                            path.string(), payload.size(), done)};
  }
  if (why && why->error == EBADMSG) remove(id);
  return why;
}

std::optional<tier_error> tier_files::read(uint64_t id, std::vector<std::byte>& payload) {
  return read_payload(id, payload);
}
std::optional<tier_error> tier_files::read(uint64_t id, std::vector<uint8_t>& payload) {
  return read_payload(id, payload);
}

void tier_files::remove(uint64_t id) {
  std::error_code none;
  if (lock_ >= 0) fs::remove(path_of(id), none);
}

std::optional<tier_error> tier_files::write_note(const std::string& name, std::string_view text) {
  const auto path = own_ / name;
  if (lock_ < 0) return failure(EBADF, path, "the folder is not open");
  auto part = path;
  part += unfinished;
  const auto all = fmt::format("{:016x}\n{}", tier_header::hash_of(std::as_bytes(std::span(text))), text);
  descriptor fd(open_file(part, O_WRONLY | O_CREAT | O_TRUNC));
  if (fd.get() < 0) return failure(errno, part, "create");
  if (const int e = write_all(fd.get(), std::as_bytes(std::span(all)))) return failure(e, part, "write");
  if (fd.close() != 0 || ::rename(part.c_str(), path.c_str()) != 0) return failure(errno, path, "write");
  return std::nullopt;
}

std::string tier_files::read_note(const std::string& name) {
  constexpr size_t hash_bytes = 17; // sixteen digits and the end of the line
  if (lock_ < 0) return {};
  std::ifstream in(own_ / name, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  if (all.empty()) return {};
  const auto text = std::string_view(all).substr(std::min(hash_bytes, all.size()));
  if (all.substr(0, hash_bytes) != fmt::format("{:016x}\n", tier_header::hash_of(std::as_bytes(std::span(text))))) {
    spdlog::warn("cache on disk: left out {}: the checksum is wrong", (own_ / name).string());
    return {};
  }
  return std::string(text);
}

} // namespace troupe
