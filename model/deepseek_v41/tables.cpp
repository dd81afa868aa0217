// Reading the side tables of a step.
#include "model/deepseek_v41/tables.h"

#include "model/deepseek_v41/state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

namespace troupe::deepseek_v41 {
namespace {

constexpr unsigned reads_in_flight = 64;
// That nothing arrives before a step is given up: a third of what its rank waits (actors/rank.h), since a step reads a
// table after the other.
constexpr std::chrono::seconds patience{10};
constexpr uint64_t plain_bytes = uint64_t{1} << 30; // largest BF16 table; such tables are for tests

bool is_nan_e4m3(std::byte b) { return (b & std::byte{0x7F}) == std::byte{0x7F}; }

} // namespace

engram_tables::engram_tables(const checkpoint& from, std::vector<int32_t> token_map, int rank, int n_ranks,
                             int32_t max_sequences, int64_t in_memory_bytes)
    : token_map_(std::move(token_map)), file_(from.settings().file), history_(static_cast<size_t>(max_sequences)) {
  const config& c = from.settings();
  if (c.engram.layers.empty()) return;
  columns_ = c.engram.columns();
  max_ngram_ = c.engram.max_ngram;
  own_columns_ = engram_columns_of_rank(c, n_ranks);
  first_column_ = own_columns_ == columns_ ? 0 : own_columns_ * rank;
  for (const int32_t id : token_map_)
    if (id < 0 || id >= c.engram.compressed_vocabulary)
      throw std::runtime_error(file_ + ": engram_compressed_vocab_size: expected more than " + std::to_string(id) +
                               ", the largest compressed id found in the tokenizer, found " +
                               std::to_string(c.engram.compressed_vocabulary));
  hash_ = std::make_unique<engram_hash>(c, compressed(c.engram.pad_id));
  for (int32_t slot = 0; slot < static_cast<int32_t>(c.engram.layers.size()); ++slot) {
    const found_table t = from.table_at(slot);
    tables_.push_back(open(from, t, in_memory_bytes));
    bytes_per_token_ += own_columns_ * t.record_bytes;
  }
}

engram_tables::table engram_tables::open(const checkpoint& from, const found_table& t, int64_t in_memory_bytes) {
  table opened{{}, {}, t, t.weight->name};
  if (t.scale != nullptr) {
    opened.rows.emplace(from.files(), *t.weight, *t.scale,
                        row_store_config{.n_reads_in_flight = reads_in_flight,
                                         .cache_budget_bytes = static_cast<uint64_t>(in_memory_bytes),
                                         .patience = patience});
    return opened;
  }
  if (t.weight->size_bytes > plain_bytes)
    throw checkpoint_error(t.weight->name + ": expected a table of at most " + std::to_string(plain_bytes) +
                           " bytes in BF16, found " + std::to_string(t.weight->size_bytes));
  opened.plain = from.files().read(*t.weight);
  return opened;
}

void engram_tables::read_rows(table& t, std::span<const int64_t> ids, std::span<std::byte> records) {
  if (t.rows) return t.rows->read(ids, records);
  const auto bytes = static_cast<size_t>(t.form.record_bytes);
  for (size_t i = 0; i < ids.size(); ++i)
    std::memcpy(records.data() + i * bytes, t.plain.data() + static_cast<size_t>(ids[i]) * bytes, bytes);
}

int32_t engram_tables::compressed(int32_t token) const {
  if (token < 0 || token >= static_cast<int32_t>(token_map_.size()))
    throw std::system_error(std::make_error_code(std::errc::invalid_argument),
                            "token " + std::to_string(token) + " has no compressed id: the tokenizer has " +
                                std::to_string(token_map_.size()) + " tokens");
  return token_map_[static_cast<size_t>(token)];
}

// The slot begins in the middle of its sequence: only what a row can look back on is rebuilt.
void engram_tables::enter(const sequence_rows& s, std::vector<int32_t>& history) const {
  const auto n = static_cast<int64_t>(s.before.size());
  if (n > s.start || n < std::min(s.start, max_ngram_ - 1))
    throw std::system_error(std::make_error_code(std::errc::invalid_argument),
                            "slot " + std::to_string(s.slot) + ": entered at " + std::to_string(s.start) + " with " +
                                std::to_string(n) + " tokens before it, expected at least " +
                                std::to_string(std::min(s.start, max_ngram_ - 1)) + " and no more than there are");
  history.assign(static_cast<size_t>(s.start), engram_hash::dead);
  for (int64_t at = s.start - n; at < s.start; ++at)
    history[static_cast<size_t>(at)] = at_position(s, at, s.before[static_cast<size_t>(at - (s.start - n))]);
}

int32_t engram_tables::at_position(const sequence_rows& s, int64_t at, int32_t token) const {
  const bool in_image = std::any_of(s.images.begin(), s.images.end(), [&](const image_span& image) {
    return at >= image.start && at < image.start + int64_t{image.grid_h} * (image.grid_w + 1) + 2;
  });
  return in_image ? engram_hash::dead : compressed(token);
}

void engram_tables::extend_history(const sequence_rows& s) {
  TROUPE_CHECK(s.slot >= 0 && s.slot < static_cast<int32_t>(history_.size()), "a slot number is below max_sequences");
  auto& history = history_[static_cast<size_t>(s.slot)];
  if (!s.before.empty()) enter(s, history);
  if (s.start > static_cast<int64_t>(history.size()))
    throw std::system_error(std::make_error_code(std::errc::invalid_argument),
                            "slot " + std::to_string(s.slot) + ": rows from position " + std::to_string(s.start) +
                                " are asked for, but its history ends at " + std::to_string(history.size()));
  history.resize(static_cast<size_t>(s.start));
  for (size_t i = 0; i < s.tokens.size(); ++i)
    history.push_back(at_position(s, s.start + static_cast<int64_t>(i), s.tokens[i]));
}

std::vector<int64_t> engram_tables::row_ids(std::span<const sequence_rows> sequences) {
  const size_t per_row = tables_.size() * static_cast<size_t>(columns_);
  std::vector<int64_t> all;
  for (const sequence_rows& s : sequences) {
    extend_history(s);
    const std::span<const int32_t> history = history_[static_cast<size_t>(s.slot)];
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const size_t end = static_cast<size_t>(s.start) + i + 1;
      const size_t n = std::min(end, static_cast<size_t>(max_ngram_)); // no lookback reaches further
      all.resize(all.size() + per_row);
      hash_->row_ids(history.subspan(end - n, n), std::span(all).last(per_row));
    }
  }
  return all;
}

void engram_tables::read(std::span<const sequence_rows> sequences, std::span<std::byte> records) {
  if (tables_.empty()) return;
  const std::vector<int64_t> all = row_ids(sequences);
  const size_t per_row = tables_.size() * static_cast<size_t>(columns_), n_rows = all.size() / per_row;
  TROUPE_CHECK(records.size() == n_rows * static_cast<size_t>(bytes_per_token_), "room for the records of every row");
  const auto own = static_cast<size_t>(own_columns_);
  size_t offset = 0;
  for (size_t slot = 0; slot < tables_.size(); ++slot) {
    table& t = tables_[slot];
    const auto bytes = static_cast<size_t>(t.form.record_bytes);
    ids_.clear();
    for (size_t r = 0; r < n_rows; ++r) {
      const auto from =
          all.begin() + static_cast<std::ptrdiff_t>(r * per_row + slot * static_cast<size_t>(columns_)) + first_column_;
      ids_.insert(ids_.end(), from, from + own_columns_);
    }
    batch_.resize(ids_.size() * bytes);
    read_rows(t, ids_, batch_);
    for (size_t i = 0; i < ids_.size(); ++i) check_record(t, ids_[i], std::span(batch_).subspan(i * bytes, bytes));
    for (size_t r = 0; r < n_rows; ++r)
      std::memcpy(records.data() + r * static_cast<size_t>(bytes_per_token_) + offset, batch_.data() + r * own * bytes,
                  own * bytes);
    offset += own * bytes;
  }
}

// A row that holds no number fails the request; it is never served as zero (exl3.md 14.1).
void engram_tables::check_record(const table& t, int64_t id, std::span<const std::byte> record) const {
  if (!t.rows) return;
  const size_t codes = t.rows->weight_bytes();
  const bool fp8 = t.form.format == engram_format::fp8;
  bool bad = fp8 && std::any_of(record.begin(), record.begin() + static_cast<std::ptrdiff_t>(codes), is_nan_e4m3);
  for (const std::byte scale : record.subspan(codes))
    bad = bad || (fp8 ? scale == std::byte{0xFF} : is_nan_e4m3(scale));
  if (bad)
    throw std::system_error(std::make_error_code(std::errc::io_error),
                            t.name + ": row " + std::to_string(id) + ": expected numbers, found a code that is none");
}

} // namespace troupe::deepseek_v41
