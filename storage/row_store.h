// The rows of one Engram table: weight (rows, width) and scale (rows, groups), two tensors of a checkpoint, any element
// types. Spec: model-tensors.md sections 1 and 3 (264 bytes a row natively, 136 in MXINT-4), engram.md section 6 (equal
// rows of a batch are read once).
#pragma once

#include "storage/file.h"
#include "storage/read_ring.h"
#include "storage/safetensors.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct row_store_config {
  unsigned n_reads_in_flight = 0;  // 1 or more
  uint64_t cache_budget_bytes = 0; // a table that fits is read whole at construction and served from memory
  // When nothing of a batch arrives for so long, read() gives it up: std::errc::timed_out. Later ones are read beside
  // it.
  std::chrono::milliseconds patience = read_ring::forever;
};

// For one thread. Owns its open files, or shares the source of a checkpoint that has none; the checkpoint need not
// outlive it.
class row_store {
public:
  enum class source { memory, io_uring, pread, made };
  struct counters {
    uint64_t rows_asked = 0;
    uint64_t rows_read = 0;  // from disk or made; an id that a batch asks for twice counts once
    uint64_t bytes_read = 0; // likewise, the load of a table into memory included
  };

  // Throws checkpoint_error when the two are not a table: not two-dimensional, or not the same number of rows.
  row_store(const checkpoint_files&, const tensor_info& weight, const tensor_info& scale, row_store_config);

  int64_t n_rows() const { return n_rows_; }
  size_t weight_bytes() const { return weight_.row_bytes; } // of one row
  size_t scale_bytes() const { return scale_.row_bytes; }
  size_t record_bytes() const { return weight_.row_bytes + scale_.row_bytes; }
  source reads_from() const;
  const counters& counted() const { return counted_; }

  // Record i of `records` becomes weight then scale of row ids[i]. Precondition: records.size() == ids.size() *
  // record_bytes(). Throws std::system_error naming file, tensor, row and offset: an id outside [0, n_rows), a read
  // that is short, fails or hangs; `records` is then undefined, but nothing writes to it any more.
  void read(std::span<const int64_t> ids, std::span<std::byte> records);

private:
  struct column {             // one of the two tensors
    std::optional<file> data; // none: `of` is made by the source
    tensor_info of;
    size_t row_bytes = 0;
  };

  static column open_column(const checkpoint_files&, const tensor_info&, int64_t n_rows);
  void load(const checkpoint_files&, const tensor_info& weight, const tensor_info& scale);
  void check_ids(std::span<const int64_t> ids) const;
  void queue_row(int64_t id, std::byte* record);
  void make_row(int64_t id, std::byte* record) const;
  std::string origin(const column&) const;
  [[noreturn]] void fail(const read_failure&) const;

  int64_t n_rows_;
  column weight_;
  column scale_;
  std::shared_ptr<const tensor_source> made_by_; // shared with the checkpoint; null: files
  read_ring ring_;
  std::chrono::milliseconds patience_;
  std::vector<std::byte> table_; // (n_rows, record_bytes) when the table is in memory, else empty
  counters counted_;
  std::vector<std::pair<int64_t, size_t>> order_; // ids of a batch with their places, sorted; kept for its storage
  std::vector<positional_read> batch_;            // weight, scale, weight, scale, ... of the distinct rows; likewise
  std::vector<int64_t> batch_ids_;                // the row of each pair of reads
};

} // namespace troupe
