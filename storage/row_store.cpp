// Sorts the ids of a batch, reads each row once in ascending order straight into its first place, copies it to the
// others.
#include "storage/row_store.h"

#include "storage/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

namespace troupe {
namespace {

// The number of rows, once the two tensors are known to be a table.
int64_t checked_rows(const checkpoint_files& checkpoint, const tensor_info& weight, const tensor_info& scale) {
  for (const tensor_info* t : {&weight, &scale}) {
    const std::string file_name = checkpoint.origin(*t);
    if (t->shape.size() != 2)
      throw checkpoint_error(fmt::format("{}: tensor '{}': expected rows and columns, found {} dimensions", file_name,
                                         printable(t->name), t->shape.size()));
    if (t->shape[0] == 0 || t->shape[1] == 0)
      throw checkpoint_error(fmt::format("{}: tensor '{}': expected a row at least, found a shape of [{}, {}]",
                                         file_name, printable(t->name), t->shape[0], t->shape[1]));
    if (t->size_bytes / static_cast<uint64_t>(t->shape[0]) > std::numeric_limits<uint32_t>::max() / 2)
      throw checkpoint_error(fmt::format("{}: tensor '{}': a row of {} bytes is none of a row table", file_name,
                                         printable(t->name), t->size_bytes / static_cast<uint64_t>(t->shape[0])));
  }
  if (weight.shape[0] != scale.shape[0])
    throw checkpoint_error(fmt::format("{}: tensor '{}': expected {} rows as in '{}', found {}",
                                       checkpoint.origin(scale), printable(scale.name), weight.shape[0],
                                       printable(weight.name), scale.shape[0]));
  return weight.shape[0];
}

} // namespace

row_store::column row_store::open_column(const checkpoint_files& checkpoint, const tensor_info& t, int64_t n_rows) {
  column c{{}, t, t.size_bytes / static_cast<uint64_t>(n_rows)};
  if (checkpoint.source()) return c;
  c.data.emplace(checkpoint.files()[t.file].data.path());
  c.data->expect_random_reads();
  return c;
}

row_store::row_store(const checkpoint_files& checkpoint, const tensor_info& weight, const tensor_info& scale,
                     row_store_config config)
    : n_rows_(checked_rows(checkpoint, weight, scale)), weight_(open_column(checkpoint, weight, n_rows_)),
      scale_(open_column(checkpoint, scale, n_rows_)), made_by_(checkpoint.source()), ring_(config.n_reads_in_flight),
      patience_(config.patience) {
  if (weight.size_bytes <= config.cache_budget_bytes &&
      scale.size_bytes <= config.cache_budget_bytes - weight.size_bytes)
    load(checkpoint, weight, scale);
}

// Both tensors, interleaved into records; a few thousand rows at a time, so that the table is in memory once.
void row_store::load(const checkpoint_files& checkpoint, const tensor_info& weight, const tensor_info& scale) {
  constexpr size_t piece_bytes = size_t{4} << 20;
  table_.resize(weight.size_bytes + scale.size_bytes);
  size_t column_begin = 0; // of the tensor at hand, in a record
  for (const tensor_info* t : {&weight, &scale}) {
    const size_t row_bytes = t == &weight ? weight_bytes() : scale_bytes();
    const size_t piece_rows = std::max<size_t>(piece_bytes / row_bytes, 1);
    std::vector<std::byte> piece(piece_rows * row_bytes);
    for (size_t first = 0; first < static_cast<size_t>(n_rows_); first += piece_rows) {
      const size_t n = std::min(piece_rows, static_cast<size_t>(n_rows_) - first);
      checkpoint.read_range(*t, first * row_bytes, std::span(piece).first(n * row_bytes));
      for (size_t r = 0; r < n; ++r)
        std::memcpy(&table_[(first + r) * record_bytes() + column_begin], &piece[r * row_bytes], row_bytes);
    }
    counted_.bytes_read += t->size_bytes;
    column_begin = row_bytes;
  }
}

row_store::source row_store::reads_from() const {
  if (!table_.empty()) return source::memory;
  if (made_by_) return source::made;
  return ring_.uses_io_uring() ? source::io_uring : source::pread;
}

void row_store::check_ids(std::span<const int64_t> ids) const {
  for (const int64_t id : ids) {
    if (id >= 0 && id < n_rows_) continue;
    throw std::system_error(std::make_error_code(std::errc::invalid_argument),
                            fmt::format("{}: tensor '{}' at offset {}: row {} asked, expected 0 to {}", origin(weight_),
                                        printable(weight_.of.name), weight_.of.offset, id, n_rows_ - 1));
  }
}

void row_store::queue_row(int64_t id, std::byte* record) {
  for (const column* c : {&weight_, &scale_}) {
    batch_.push_back({c->data->descriptor(), c->of.offset + static_cast<uint64_t>(id) * c->row_bytes, record,
                      static_cast<uint32_t>(c->row_bytes)});
    record += c->row_bytes;
  }
  batch_ids_.push_back(id);
}

void row_store::make_row(int64_t id, std::byte* record) const {
  for (const column* c : {&weight_, &scale_}) {
    made_by_->read(c->of, static_cast<uint64_t>(id) * c->row_bytes, {record, c->row_bytes});
    record += c->row_bytes;
  }
}

std::string row_store::origin(const column& c) const { return c.data ? c.data->path().string() : made_by_->name(); }

void row_store::read(std::span<const int64_t> ids, std::span<std::byte> records) {
  TROUPE_CHECK(records.size() == ids.size() * record_bytes(), "a record for each id");
  check_ids(ids);
  counted_.rows_asked += ids.size();
  const auto record = [&](size_t i) { return records.data() + i * record_bytes(); };
  if (!table_.empty()) {
    for (size_t i = 0; i < ids.size(); ++i)
      std::memcpy(record(i), &table_[static_cast<size_t>(ids[i]) * record_bytes()], record_bytes());
    return;
  }
  order_.clear();
  for (size_t i = 0; i < ids.size(); ++i) order_.emplace_back(ids[i], i);
  std::sort(order_.begin(), order_.end());
  batch_.clear();
  batch_ids_.clear();
  size_t n_distinct = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i > 0 && order_[i].first == order_[i - 1].first) continue;
    ++n_distinct;
    if (made_by_)
      make_row(order_[i].first, record(order_[i].second));
    else
      queue_row(order_[i].first, record(order_[i].second));
  }
  if (read_failure failure; !ring_.read_all(batch_, failure, patience_)) fail(failure);
  counted_.rows_read += n_distinct;
  counted_.bytes_read += n_distinct * record_bytes();
  for (size_t i = 1; i < order_.size(); ++i)
    if (order_[i].first == order_[i - 1].first)
      std::memcpy(record(order_[i].second), record(order_[i - 1].second), record_bytes());
}

void row_store::fail(const read_failure& failure) const {
  const positional_read& r = batch_[failure.index];
  const column& c = failure.index % 2 == 0 ? weight_ : scale_;
  throw std::system_error(failure.error != 0 ? failure.error : EIO, std::generic_category(),
                          fmt::format("{}: tensor '{}': {} of row {} at offset {}: expected {} bytes, found {}",
                                      origin(c), printable(c.of.name),
                                      failure.error == ETIMEDOUT ? "unanswered read"
                                      : failure.error != 0       ? "failed read"
                                                                 : "short read",
                                      batch_ids_[failure.index / 2], r.offset, r.size, failure.n_read));
}

} // namespace troupe
