// Hashes of the build, of what lies in a folder of weights, and of the settings that matter.
#include "actors/fingerprint.h"

#include "storage/build_id.h"
#include "storage/file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace troupe {

namespace {

namespace fs = std::filesystem;
constexpr const char* small_files[] = {"config.json", "model.safetensors.index.json", "synth.json", "tokenizer.json",
                                       "generation_config.json"}; // one that is absent counts as empty
constexpr uint64_t most_header_bytes = uint64_t{64} << 20, piece_bytes = 4096, n_pieces = 64;

// A hash of one thing after the other, each behind its length.
class hasher {
public:
  hasher() { XXH64_reset(state_.get(), 0); }
  void add(std::span<const std::byte> bytes) {
    add(static_cast<int64_t>(bytes.size()));
    XXH64_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(int64_t n) { XXH64_update(state_.get(), &n, sizeof n); }
  std::string name() const {
    char text[24];
    std::snprintf(text, sizeof text, "fp_%016llx", static_cast<unsigned long long>(XXH64_digest(state_.get())));
    return text;
  }

private:
  struct free_state {
    void operator()(XXH64_state_t* s) const { XXH64_freeState(s); }
  };
  std::unique_ptr<XXH64_state_t, free_state> state_{XXH64_createState()};
};

std::vector<fs::path> weight_files(const std::string& folder) {
  std::vector<fs::path> out;
  for (const auto& e : fs::directory_iterator(folder))
    if (e.path().extension() == ".safetensors") out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

void add_range(hasher& h, const file& f, uint64_t from, uint64_t n, std::vector<std::byte>& bytes) {
  bytes.resize(n);
  f.read(from, bytes);
  h.add(bytes);
}

// The header says which tensors lie where; the pieces, which values.
void add_weights(hasher& h, const fs::path& path) {
  const file f(path);
  const uint64_t size = f.size_bytes();
  h.add(path.filename().string());
  h.add(static_cast<int64_t>(size));
  std::vector<std::byte> bytes;
  uint64_t header = 0; // its length is what a safetensors file begins with
  if (size >= sizeof header) {
    f.read(0, std::as_writable_bytes(std::span(&header, 1)));
    header = std::min({header, size - sizeof header, most_header_bytes}) + sizeof header;
  }
  add_range(h, f, 0, header, bytes);
  const uint64_t rest = size - header;
  for (uint64_t i = 0; i < n_pieces && rest > 0; ++i) {
    const uint64_t at = rest > piece_bytes ? (rest - piece_bytes) * i / (n_pieces - 1) : 0;
    add_range(h, f, header + at, std::min(piece_bytes, rest - at), bytes);
  }
}

} // namespace

std::string make_fingerprint(const std::string& folder, const settings& s) {
  hasher h;
  h.add(build_id());
  for (const char* name : small_files) {
    std::error_code none;
    const auto path = fs::path(folder) / name;
    if (!fs::exists(path, none)) {
      h.add(std::string_view());
      continue;
    }
    const file f(path);
    std::vector<std::byte> bytes;
    add_range(h, f, 0, f.size_bytes(), bytes);
  }
  for (const auto& path : weight_files(folder)) add_weights(h, path);
  h.add(s.backend);
  h.add(s.prefill);
  h.add(s.tail_tokens);
  h.add(s.ranks);
  h.add(s.suppress_reserved);
  return h.name();
}

std::string make_cache_fingerprint(const std::string& system_fingerprint, const std::string& folder,
                                   const cached_form& form) {
  hasher h;
  h.add(system_fingerprint);
  h.add(static_cast<int64_t>(form.rows));
  h.add(form.block_bytes);
  h.add(form.snapshot_bytes);
  h.add(form.has_drafts);
  for (const auto& path : weight_files(folder)) h.add(fs::last_write_time(path).time_since_epoch().count());
  return h.name();
}

} // namespace troupe
