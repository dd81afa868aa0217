// Filling the columns of a step.
#include "model/deepseek_v41/rows.h"

#include <cstring>

namespace troupe::deepseek_v41 {
namespace {

// Columns in the order of their memory: positions first, so that all of them are aligned.
enum wide_column { position, floor, entry_position_1, entry_position_2, n_wide };
enum narrow_column { id, slot, first_row, table, vl, entry_1, entry_2, n_narrow };
constexpr int64_t row_bytes = n_wide * 8 + n_narrow * 4;

std::byte* wide_at(std::byte* memory, int64_t n, int column) { return memory + column * n * 8; }
std::byte* narrow_at(std::byte* memory, int64_t n, int column) { return memory + n_wide * n * 8 + column * n * 4; }

} // namespace

row_columns::row_columns(backend& be, int64_t max_rows, const std::string& what)
    : be_(be), max_rows_(max_rows), memory_(be.allocate(dtype::u8, {max_rows * row_bytes}, what)) {}

void row_columns::add(const host_row& r) {
  TROUPE_CHECK(n() < max_rows_, "a step has no more rows than the model was made for");
  rows_.push_back(r);
  if (runs_.empty() || runs_.back().rows != r.rows) runs_.push_back({r.rows, 0});
  ++runs_.back().n;
}

void row_columns::upload() {
  packed_.resize(static_cast<size_t>(n() * row_bytes));
  const auto wide = [&](int64_t row, int column, int64_t value) {
    std::memcpy(wide_at(packed_.data(), n(), column) + row * 8, &value, 8);
  };
  const auto narrow = [&](int64_t row, int column, int32_t value) {
    std::memcpy(narrow_at(packed_.data(), n(), column) + row * 4, &value, 4);
  };
  for (int64_t i = 0; i < n(); ++i) {
    const host_row& r = rows_[static_cast<size_t>(i)];
    wide(i, position, r.position);
    wide(i, floor, r.floor);
    narrow(i, id, r.id);
    narrow(i, slot, r.slot);
    narrow(i, first_row, r.first_row);
    narrow(i, table, r.table);
    narrow(i, vl, r.in_image ? 1 : 0);
    for (int ratio = 1; ratio <= 2; ++ratio) {
      const bool ends = (r.position + 1) % ratio == 0;
      const int64_t entry = ends ? (r.position + 1) / ratio - 1 : -1;
      narrow(i, entry_1 + ratio - 1, static_cast<int32_t>(entry));
      wide(i, entry_position_1 + ratio - 1, ends ? entry * ratio : -1);
    }
  }
  be_.upload(memory_, packed_.data(), n() * row_bytes);
}

row_set row_columns::view(int64_t n, tensor tables) const {
  TROUPE_CHECK(n <= max_rows_, "a step has no more rows than the model was made for");
  const auto i64 = [&](int column) { return tensor(wide_at(memory_.data, n, column), dtype::i64, {n}); };
  const auto i32 = [&](int column) { return tensor(narrow_at(memory_.data, n, column), dtype::i32, {n}); };
  row_set s;
  s.n = n;
  s.ids = i32(id);
  s.vl = i32(vl);
  s.rows.slot = i32(slot);
  s.rows.first_row = i32(first_row);
  s.rows.table = i32(table);
  s.rows.position = i64(position);
  s.rows.floor = i64(floor);
  s.rows.tables = tables;
  s.runs = runs_;
  for (int r = 0; r < 2; ++r) {
    s.entries[r] = i32(entry_1 + r);
    s.entry_positions[r] = i64(entry_position_1 + r);
  }
  return s;
}

} // namespace troupe::deepseek_v41
