// Filling the columns of a step.
#include "model/deepseek_v41/rows.h"

namespace troupe::deepseek_v41 {

row_columns::row_columns(backend& be, int64_t max_rows, const std::string& what) : be_(be), max_rows_(max_rows) {
  const auto i32 = [&] { return be.allocate(dtype::i32, {max_rows}, what); };
  const auto i64 = [&] { return be.allocate(dtype::i64, {max_rows}, what); };
  all_.ids = i32();
  all_.vl = i32();
  all_.rows.slot = i32();
  all_.rows.first_row = i32();
  all_.rows.table = i32();
  all_.rows.position = i64();
  all_.rows.floor = i64();
  for (int r = 0; r < 2; ++r) {
    all_.entries[r] = i32();
    all_.entry_positions[r] = i64();
  }
}

void row_columns::clear() {
  for (auto* v : {&id_, &slot_, &first_row_, &table_, &vl_, &entry_[0], &entry_[1]}) v->clear();
  for (auto* v : {&position_, &floor_, &entry_position_[0], &entry_position_[1]}) v->clear();
}

void row_columns::add(const host_row& r) {
  TROUPE_CHECK(n() < max_rows_, "a step has no more rows than the model was made for");
  id_.push_back(r.id);
  slot_.push_back(r.slot);
  first_row_.push_back(r.first_row);
  table_.push_back(r.table);
  vl_.push_back(r.in_image ? 1 : 0);
  position_.push_back(r.position);
  floor_.push_back(r.floor);
  for (int64_t ratio = 1; ratio <= 2; ++ratio) {
    const bool ends = (r.position + 1) % ratio == 0;
    const int64_t entry = ends ? (r.position + 1) / ratio - 1 : -1;
    entry_[ratio - 1].push_back(static_cast<int32_t>(entry));
    entry_position_[ratio - 1].push_back(ends ? entry * ratio : -1);
  }
}

tensor row_columns::put(tensor column, const void* from) const {
  const tensor t = column.slice(0, n());
  be_.upload(t, from, t.size_bytes());
  return t;
}

row_set row_columns::upload(tensor tables) {
  row_set s;
  s.n = n();
  s.ids = put(all_.ids, id_.data());
  s.vl = put(all_.vl, vl_.data());
  s.rows.slot = put(all_.rows.slot, slot_.data());
  s.rows.first_row = put(all_.rows.first_row, first_row_.data());
  s.rows.table = put(all_.rows.table, table_.data());
  s.rows.position = put(all_.rows.position, position_.data());
  s.rows.floor = put(all_.rows.floor, floor_.data());
  s.rows.tables = tables;
  for (int r = 0; r < 2; ++r) {
    s.entries[r] = put(all_.entries[r], entry_[r].data());
    s.entry_positions[r] = put(all_.entry_positions[r], entry_position_[r].data());
  }
  return s;
}

} // namespace troupe::deepseek_v41
