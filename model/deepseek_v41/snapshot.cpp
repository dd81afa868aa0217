// Rows go oldest first, cache by cache, so that the bytes depend neither on the slot nor on the size of the ring.
#include "model/deepseek_v41/snapshot.h"

#include "gpu/cache_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace troupe::deepseek_v41 {
namespace {

struct header {
  uint32_t magic = 0x534E5054; // "TPNS" in a little-endian file
  uint32_t version = 1;
  int64_t n_tokens = 0, floor = 0;
  int64_t n_rings = 0, rows = 0, row_bytes = 0;
  int64_t n_pending = 0, pending_bytes = 0;
  int64_t size_bytes = 0; // of the whole, this header included
};
static_assert(std::is_trivially_copyable_v<header>);

header describe(std::span<const layer_cache> caches, int64_t rows, int64_t n_tokens) {
  header h;
  h.n_tokens = n_tokens;
  h.n_rings = static_cast<int64_t>(caches.size());
  h.rows = std::min(rows, n_tokens);
  const tensor& ring = caches.front().ring;
  h.row_bytes = ring.shape[2] * size_bytes(ring.type);
  for (const layer_cache& c : caches) {
    if (!c.pending || n_tokens % 2 == 0) continue; // an even position closes its group
    ++h.n_pending;
    h.pending_bytes = c.pending.shape[2] * c.pending.shape[3] * size_bytes(c.pending.type);
  }
  h.size_bytes = static_cast<int64_t>(sizeof h) + h.n_rings * h.rows * h.row_bytes + h.n_pending * h.pending_bytes;
  return h;
}

// Calls move(rows of the device, offset in bytes) for each piece of a ring that is one piece of memory.
template <class Move> void each_piece(const layer_cache& c, const header& h, int32_t slot, Move move) {
  const int64_t ring = c.ring.shape[1];
  const tensor rows = c.ring.slice(slot, 1).reshape({ring, c.ring.shape[2]});
  for (int64_t at = h.n_tokens - h.rows, done = 0; done < h.rows;) {
    const int64_t first = at % ring, n = std::min(h.rows - done, ring - first);
    move(rows.slice(first, n), done * h.row_bytes);
    at += n;
    done += n;
  }
}

tensor pending_pair(const layer_cache& c, int32_t slot, int64_t n_tokens) {
  const int64_t pairs = c.pending.shape[1];
  const tensor of_slot = c.pending.slice(slot, 1).reshape({pairs, c.pending.shape[2], c.pending.shape[3]});
  return of_slot.slice((n_tokens - 1) / 2 % pairs, 1);
}

void expect(const char* what, int64_t expected, int64_t found) {
  if (expected != found)
    throw std::runtime_error(std::string("snapshot: ") + what + ": expected " + std::to_string(expected) + ", found " +
                             std::to_string(found));
}

header checked(std::span<const layer_cache> caches, int64_t rows, int64_t n_tokens, std::span<const std::byte> from) {
  const header want = describe(caches, rows, n_tokens);
  header got;
  if (from.size() < sizeof got)
    throw std::runtime_error("snapshot: expected a header of " + std::to_string(sizeof got) + " bytes, found " +
                             std::to_string(from.size()));
  std::memcpy(&got, from.data(), sizeof got);
  expect("magic", want.magic, got.magic);
  expect("version", want.version, got.version);
  expect("tokens", want.n_tokens, got.n_tokens);
  expect("rings", want.n_rings, got.n_rings);
  expect("rows of a ring", want.rows, got.rows);
  expect("bytes of a row", want.row_bytes, got.row_bytes);
  expect("pending groups", want.n_pending, got.n_pending);
  expect("bytes of a pending group", want.pending_bytes, got.pending_bytes);
  expect("bytes in all", want.size_bytes, got.size_bytes);
  expect("bytes", want.size_bytes, static_cast<int64_t>(from.size()));
  if (got.floor < 0 || got.floor > want.n_tokens)
    throw std::runtime_error("snapshot: floor: expected one from 0 to " + std::to_string(want.n_tokens) + ", found " +
                             std::to_string(got.floor));
  return got;
}

} // namespace

int64_t snapshot_rows(const config& c, bool with_draft) { return with_draft ? c.window : c.window - 1; }

int64_t snapshot_slack(const config& c, const cache_plan& p, bool with_draft) {
  return std::min(p.ring - snapshot_rows(c, with_draft), 2 * (p.pending_pairs - 1));
}

int64_t bytes_per_snapshot(const config& c, cache_form form, bool with_draft) {
  int64_t bytes = static_cast<int64_t>(sizeof(header)) + (c.layers + (with_draft ? c.draft.stages : 0)) *
                                                             snapshot_rows(c, with_draft) *
                                                             cache_row_bytes(form, quantiser::fp8_32, c.head_dim);
  for (const int32_t l : c.kv_sources)
    if (c.role(l).ratio == 2) bytes += 2 * c.head_dim * int64_t{sizeof(float)};
  return bytes;
}

void save_snapshot(backend& be, std::span<const layer_cache> caches, int64_t rows, int32_t slot, int64_t n_tokens,
                   int64_t floor, std::vector<std::byte>& to) {
  header h = describe(caches, rows, n_tokens);
  h.floor = std::min(floor, n_tokens);
  to.resize(static_cast<size_t>(h.size_bytes));
  std::memcpy(to.data(), &h, sizeof h);
  std::byte* at = to.data() + sizeof h;
  for (const layer_cache& c : caches) {
    each_piece(c, h, slot, [&](tensor piece, int64_t offset) { be.download(at + offset, piece, piece.size_bytes()); });
    at += h.rows * h.row_bytes;
  }
  for (const layer_cache& c : caches) {
    if (!c.pending || n_tokens % 2 == 0) continue;
    be.download(at, pending_pair(c, slot, n_tokens), h.pending_bytes);
    at += h.pending_bytes;
  }
}

void check_snapshot(std::span<const layer_cache> caches, int64_t rows, int64_t n_tokens,
                    std::span<const std::byte> from) {
  checked(caches, rows, n_tokens, from);
}

int64_t load_snapshot(backend& be, std::span<const layer_cache> caches, int64_t rows, int32_t slot, int64_t n_tokens,
                      std::span<const std::byte> from) {
  const header h = checked(caches, rows, n_tokens, from);
  const std::byte* at = from.data() + sizeof h;
  for (const layer_cache& c : caches) {
    each_piece(c, h, slot, [&](tensor piece, int64_t offset) { be.upload(piece, at + offset, piece.size_bytes()); });
    at += h.rows * h.row_bytes;
  }
  for (const layer_cache& c : caches) {
    if (!c.pending || n_tokens % 2 == 0) continue;
    be.upload(pending_pair(c, slot, n_tokens), at, h.pending_bytes);
    at += h.pending_bytes;
  }
  return h.floor;
}

namespace {

// Calls move(what a block holds in a source layer), in the order of its bytes.
template <class Move> void each_part(const config& c, std::span<const layer_cache> caches, int32_t block, Move move) {
  for (const int32_t l : c.kv_sources) {
    const layer_cache& cache = caches[static_cast<size_t>(l)];
    for (const tensor& t : {cache.compressed, cache.keys}) move(t.slice(block, 1));
  }
}

} // namespace

void copy_block(backend& be, const config& c, std::span<const layer_cache> caches, int32_t from, int32_t to) {
  for (const int32_t l : c.kv_sources) {
    const layer_cache& cache = caches[static_cast<size_t>(l)];
    for (const tensor& t : {cache.compressed, cache.keys}) be.copy_rows(t.slice(to, 1), {}, t.slice(from, 1), {});
  }
}

void save_block(backend& be, const config& c, std::span<const layer_cache> caches, int32_t block,
                std::span<std::byte> to) {
  each_part(c, caches, block, [&](tensor part) {
    be.download(to.data(), part, part.size_bytes());
    to = to.subspan(static_cast<size_t>(part.size_bytes()));
  });
}

void load_block(backend& be, const config& c, std::span<const layer_cache> caches, int32_t block,
                std::span<const std::byte> from) {
  each_part(c, caches, block, [&](tensor part) {
    be.upload(part, from.data(), part.size_bytes());
    from = from.subspan(static_cast<size_t>(part.size_bytes()));
  });
}

} // namespace troupe::deepseek_v41
