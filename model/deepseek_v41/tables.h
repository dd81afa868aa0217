// Engram rows for tokens: history -> hash ids -> records from disk.                       Spec: engram.md sections 1
// to 6.
#pragma once

#include "model/deepseek_v41/checkpoint.h"
#include "model/deepseek_v41/engram.h"
#include "model/model.h"
#include "storage/row_store.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

// `token_map`: vocabulary id -> compressed id. The pad id is the compressed id of the config's pad token.
class engram_tables final : public table_reader {
public:
  // A rank reads its share of the columns where they divide evenly, else all. Throws checkpoint_error and
  // std::runtime_error: tables missing or of another shape, prime sums that do not fit, ids the map lacks.
  engram_tables(const checkpoint&, std::vector<int32_t> token_map, int rank, int n_ranks, int32_t max_sequences,
                int64_t in_memory_bytes = tables_in_memory_bytes);

  int64_t record_bytes_per_token() const override { return bytes_per_token_; }
  void read(std::span<const sequence_rows>, std::span<std::byte> records) override;

  // Hash ids [slot][column] of every row that read() would read, for tests; updates the histories as read() does.
  std::vector<int64_t> row_ids(std::span<const sequence_rows>);

private:
  struct table {
    std::optional<row_store> rows; // empty for plain BF16 tables, which are kept in memory
    std::vector<std::byte> plain;
    found_table form;
    std::string name;
  };

  static table open(const checkpoint&, const found_table&, int64_t in_memory_bytes);
  static void read_rows(table&, std::span<const int64_t> ids, std::span<std::byte> records);
  void extend_history(const sequence_rows&);
  void enter(const sequence_rows&, std::vector<int32_t>& history) const;
  int32_t at_position(const sequence_rows&, int64_t at, int32_t token) const; // compressed id, or dead
  int32_t compressed(int32_t token) const;
  void check_record(const table&, int64_t id, std::span<const std::byte> record) const;

  std::vector<int32_t> token_map_;
  std::string file_;
  int64_t columns_ = 0, first_column_ = 0, own_columns_ = 0, max_ngram_ = 0, bytes_per_token_ = 0;
  std::unique_ptr<engram_hash> hash_;
  std::vector<table> tables_;
  std::vector<std::vector<int32_t>> history_; // per sequence slot: compressed id of every position, dead marks kept
  std::vector<int64_t> ids_;                  // kept for their storage
  std::vector<std::byte> batch_;
};

} // namespace troupe::deepseek_v41
