// Byte-pair merging of one piece: repeatedly the pair of lowest rank, the leftmost of equals. Spec: chat.md 1.3.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe {

// The merge table. Immutable once filled; `encoder` holds what one caller needs.
class byte_pairs {
public:
  // `byte_ids[b]`: the id of the one-byte symbol b.
  explicit byte_pairs(const std::array<int32_t, 256>& byte_ids, size_t n_merges);
  // Merge number `rank` joins `left` and `right` into `joined`. False when the pair has a rank already.
  bool add(int32_t left, int32_t right, int32_t rank, int32_t joined);

  // Encodes pieces of one text, remembering those it has seen. O(n log n) in the length of a piece.
  class encoder {
  public:
    explicit encoder(const byte_pairs& table) : table_(&table) {}
    // Appends the ids of `piece`. Precondition: all pieces given to one encoder outlive it, and all go into one `out`.
    void encode(std::string_view piece, std::vector<int32_t>& out);

  private:
    struct seen {
      const char* piece = nullptr;
      uint32_t size_bytes = 0, n_ids = 0;
      size_t first_id = 0; // in `out`
    };
    void merge_short(std::string_view piece, std::vector<int32_t>& out);
    void merge_long(std::string_view piece, std::vector<int32_t>& out);
    seen& find_seen(std::string_view piece);
    void grow();
    const byte_pairs* table_;
    std::vector<seen> seen_; // open addressing, a power of two
    size_t n_seen_ = 0;
  };

private:
  struct slot {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0, joined = 0;
  };
  const slot* find(int32_t left, int32_t right) const; // nullptr: the pair never merges
  size_t start_of(uint64_t pair) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<slot> slots_; // open addressing, a power of two, at most half full
};

} // namespace troupe
