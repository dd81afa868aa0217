// The rows of one step as columns in device memory. Allocated once, filled by one upload for each step.
#pragma once

#include "gpu/backend.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

// What a layer needs to know about the rows it runs on. Views of a row_columns: those of one row count are the same
// memory at every step, so that captured work finds the rows of any later step there.
struct row_set {
  int64_t n = 0;
  step_rows rows;
  tensor ids; // (n) i32 token ids
  tensor vl;  // (n) i32: 1 inside an image span
  // Of ratio 1 and 2: the entry that ends at row i, or -1, and the position of its first token, or -1. (n) i32, i64
  tensor entries[2], entry_positions[2];
  std::span<const row_run> runs; // what the rows are computed for

  bool has_prompt() const {
    return std::ranges::any_of(runs, [](const row_run& r) { return r.rows == row_class::prefill; });
  }
};

struct host_row {
  int32_t id = 0, slot = 0;
  int64_t position = 0;
  int32_t first_row = 0;
  int64_t floor = 0;
  int32_t table = 0; // row of the block tables
  bool in_image = false;
  row_class rows = row_class::decode;
};

class row_columns {
public:
  row_columns(backend&, int64_t max_rows, const std::string& what);

  void clear() { rows_.clear(), runs_.clear(); }
  void add(const host_row&); // Precondition: fewer than max_rows rows
  int64_t n() const { return static_cast<int64_t>(rows_.size()); }
  void upload();
  row_set view(int64_t n, tensor tables) const; // of the first n rows

private:
  backend& be_;
  int64_t max_rows_;
  std::vector<host_row> rows_;
  std::vector<row_run> runs_;
  std::vector<std::byte> packed_; // columns of n() rows, one behind the other
  tensor memory_;                 // the same on the device
};

} // namespace troupe::deepseek_v41
