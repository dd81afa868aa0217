// Merging with a plain scan for short pieces and with a heap over a linked list for long ones.
#include "model/byte_pairs.h"

#include "storage/check.h"

#include <bit>
#include <climits>
#include <cstring>
#include <queue>

namespace troupe {
namespace {

constexpr size_t short_piece = 32;  // bytes; below this the scan beats the heap
constexpr size_t longest_seen = 64; // bytes; longer pieces hardly ever repeat
constexpr size_t most_seen = size_t{1} << 16;

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ull; // 2^64 / golden ratio
  return x ^ (x >> 29);
}

uint64_t hash_bytes(std::string_view s) {
  uint64_t h = s.size();
  while (s.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, s.data(), 8);
    h = mix(h ^ word);
    s.remove_prefix(8);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, s.data(), s.size());
  return mix(h ^ tail);
}

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

} // namespace

byte_pairs::byte_pairs(const std::array<int32_t, 256>& byte_ids, size_t n_merges)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(2 * n_merges + 2)) {}

size_t byte_pairs::start_of(uint64_t pair) const { return mix(pair) & (slots_.size() - 1); }

bool byte_pairs::add(int32_t left, int32_t right, int32_t rank, int32_t joined) {
  const uint64_t pair = pair_of(left, right);
  size_t at = start_of(pair);
  for (; slots_[at].pair != ~uint64_t{0}; at = (at + 1) & (slots_.size() - 1))
    if (slots_[at].pair == pair) return false;
  slots_[at] = {pair, rank, joined};
  return true;
}

const byte_pairs::slot* byte_pairs::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t at = start_of(pair);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == ~uint64_t{0}) return nullptr;
  }
}

void byte_pairs::encoder::encode(std::string_view piece, std::vector<int32_t>& out) {
  if (piece.size() == 1) {
    out.push_back(table_->byte_ids_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (piece.size() > longest_seen) return merge_long(piece, out);
  if (2 * (n_seen_ + 1) > seen_.size() && seen_.size() < most_seen) grow();
  seen& s = find_seen(piece);
  if (s.piece != nullptr) {
    const size_t first = out.size();
    out.resize(first + s.n_ids);
    std::memcpy(out.data() + first, out.data() + s.first_id, s.n_ids * sizeof(int32_t));
    return;
  }
  const size_t first = out.size();
  piece.size() > short_piece ? merge_long(piece, out) : merge_short(piece, out);
  if (2 * (n_seen_ + 1) > seen_.size()) return; // full: what is known already is enough
  s = {piece.data(), static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(out.size() - first), first};
  ++n_seen_;
}

byte_pairs::encoder::seen& byte_pairs::encoder::find_seen(std::string_view piece) {
  size_t at = hash_bytes(piece) & (seen_.size() - 1);
  for (;; at = (at + 1) & (seen_.size() - 1)) {
    seen& s = seen_[at];
    if (s.piece == nullptr || std::string_view(s.piece, s.size_bytes) == piece) return s;
  }
}

void byte_pairs::encoder::grow() {
  std::vector<seen> old(seen_.empty() ? 64 : seen_.size() * 4);
  old.swap(seen_);
  for (const seen& s : old)
    if (s.piece != nullptr) find_seen({s.piece, s.size_bytes}) = s;
}

void byte_pairs::encoder::merge_short(std::string_view piece, std::vector<int32_t>& out) {
  int32_t ids[short_piece], ranks[short_piece]; // ranks[i]: of the pair (i, i + 1), INT_MAX: never merges
  int32_t joined[short_piece];
  size_t n = piece.size();
  const auto look = [&](size_t i) {
    const slot* s = i + 1 < n ? table_->find(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = s != nullptr ? s->rank : INT_MAX;
    joined[i] = s != nullptr ? s->joined : -1;
  };
  for (size_t i = 0; i < n; ++i) ids[i] = table_->byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == INT_MAX) break;
    ids[best] = joined[best];
    for (size_t i = best + 1; i + 1 < n; ++i) ids[i] = ids[i + 1], ranks[i] = ranks[i + 1], joined[i] = joined[i + 1];
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  out.insert(out.end(), ids, ids + n);
}

void byte_pairs::encoder::merge_long(std::string_view piece, std::vector<int32_t>& out) {
  TROUPE_CHECK(piece.size() < UINT32_MAX, "a piece is part of one prompt, which is far smaller");
  struct symbol {
    int32_t id;
    uint32_t before, after; // neighbours, UINT32_MAX: none
  };
  struct candidate {
    int32_t rank;
    uint32_t at;
    int32_t left, right, joined; // stale unless the symbols at `at` still are these
    bool operator<(const candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<symbol> symbols(n);
  for (uint32_t i = 0; i < n; ++i)
    symbols[i] = {table_->byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < n ? i + 1 : UINT32_MAX};
  std::vector<candidate> first;
  const auto candidate_at = [&](uint32_t i, auto&& take) {
    const uint32_t j = symbols[i].after;
    if (j == UINT32_MAX) return;
    if (const slot* s = table_->find(symbols[i].id, symbols[j].id))
      take(candidate{s->rank, i, symbols[i].id, symbols[j].id, s->joined});
  };
  for (uint32_t i = 0; i < n; ++i) candidate_at(i, [&](candidate c) { first.push_back(c); });
  std::priority_queue<candidate> heap({}, std::move(first));
  while (!heap.empty()) {
    const candidate c = heap.top();
    heap.pop();
    symbol& left = symbols[c.at];
    if (left.id != c.left || left.after == UINT32_MAX || symbols[left.after].id != c.right) continue;
    symbol& right = symbols[left.after];
    left.id = c.joined;
    right.id = -1; // gone: no candidate names it again
    left.after = right.after;
    if (left.after != UINT32_MAX) symbols[left.after].before = c.at;
    candidate_at(c.at, [&](candidate next) { heap.push(next); });
    if (left.before != UINT32_MAX) candidate_at(left.before, [&](candidate next) { heap.push(next); });
  }
  for (uint32_t i = 0; i != UINT32_MAX; i = symbols[i].after) out.push_back(symbols[i].id);
}

} // namespace troupe
