// Length word, header, then the tensors one after another; every write is checked.
#include "storage/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace troupe {
namespace {

constexpr size_t piece_bytes = size_t{64} << 20; // enough for a source to make it with several threads

// A file that did not exist before; closed at the end, and its last errors are not lost.
class new_file {
public:
  explicit new_file(const std::filesystem::path& path)
      : path_(path.string()), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail("cannot be made");
  }
  ~new_file() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  new_file(const new_file&) = delete;
  new_file& operator=(const new_file&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(fmt::format("write failed after {} bytes", n_written_));
      n_written_ += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void close() {
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) fail("cannot be closed");
  }

private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::system_error(errno, std::generic_category(), path_ + ": " + what);
  }

  std::string path_;
  int descriptor_;
  uint64_t n_written_ = 0;
};

// Length word and JSON, padded with blanks to 8 bytes.
std::string header_of(const shard_plan& shard) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const tensor_info& t : shard.tensors) {
    json += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", t.name, name(t.type),
                        fmt::join(t.shape, ","), at, at + t.size_bytes);
    at += t.size_bytes;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string all;
  for (int i = 0; i < 8; ++i) all += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i) & 0xFF);
  return all + json;
}

} // namespace

uint64_t size_bytes(const shard_plan& shard) {
  uint64_t n = header_of(shard).size();
  for (const tensor_info& t : shard.tensors) n += t.size_bytes;
  return n;
}

void write_shard(const std::filesystem::path& folder, const shard_plan& shard, const tensor_source& from,
                 const std::function<void(uint64_t n_bytes)>& wrote) {
  new_file out(folder / shard.file_name);
  const std::string header = header_of(shard);
  out.write(std::as_bytes(std::span(header)));
  wrote(header.size());
  std::vector<std::byte> piece;
  for (const tensor_info& t : shard.tensors)
    for (uint64_t at = 0; at < t.size_bytes; at += piece.size()) {
      piece.resize(static_cast<size_t>(std::min<uint64_t>(piece_bytes, t.size_bytes - at)));
      from.read(t, at, piece);
      out.write(piece);
      wrote(piece.size());
    }
  out.close();
}

void write_index(const std::filesystem::path& folder, std::span<const shard_plan> shards) {
  uint64_t total = 0;
  std::string map;
  for (const shard_plan& s : shards)
    for (const tensor_info& t : s.tensors) {
      total += t.size_bytes;
      map += fmt::format("{}\n    \"{}\": \"{}\"", map.empty() ? "" : ",", t.name, s.file_name);
    }
  write_new_file(
      folder / "model.safetensors.index.json",
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", total, map));
}

void write_new_file(const std::filesystem::path& path, const std::string& text) {
  new_file out(path);
  out.write(std::as_bytes(std::span(text)));
  out.close();
}

} // namespace troupe
