// The rows of one step as columns in device memory. Allocated once, filled for each step.
#pragma once

#include "gpu/backend.h"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

// What a layer needs to know about the rows it runs on. Views of a row_columns, valid until it is filled again.
struct row_set {
  int64_t n = 0;
  step_rows rows;
  tensor ids; // (n) i32 token ids
  tensor vl;  // (n) i32: 1 inside an image span
  // Of ratio 1 and 2: the entry that ends at row i, or -1, and the position of its first token, or -1. (n) i32, i64
  tensor entries[2], entry_positions[2];
};

struct host_row {
  int32_t id = 0, slot = 0;
  int64_t position = 0;
  int32_t first_row = 0;
  int64_t floor = 0;
  int32_t table = 0; // index of the sequence within the step
  bool in_image = false;
};

class row_columns {
public:
  row_columns(backend&, int64_t max_rows, const std::string& what);

  void clear();
  void add(const host_row&); // Precondition: fewer than max_rows rows
  int64_t n() const { return static_cast<int64_t>(position_.size()); }
  row_set upload(tensor tables);

private:
  tensor put(tensor column, const void* from) const;

  backend& be_;
  int64_t max_rows_;
  std::vector<int32_t> id_, slot_, first_row_, table_, vl_, entry_[2];
  std::vector<int64_t> position_, floor_, entry_position_[2];
  row_set all_; // of max_rows rows
};

} // namespace troupe::deepseek_v41
