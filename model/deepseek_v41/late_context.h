// Context rows of the draft stages, made when guesses or a snapshot need them and not before.    Spec: dspark.md
// section 3.
#pragma once

#include "model/deepseek_v41/draft.h"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

// Steps without drafts would pay for rows that nobody reads: only what such a row is made of, its taps, is kept, in
// rings beside those of the caches. A row made later has the same bits where all rows are of one class
// (backend::has_row_classes), and several at once cost less than one by one.
class late_context {
public:
  late_context(backend&, const config&, const cache_plan&, int64_t max_rows);

  // Whether a model with this drafter makes its rows late, by the form of caches that its backend prefers: the host's
  // has one class of rows.
  static bool is_used(bool with_draft, cache_form preferred) { return with_draft && preferred == host_caches; }
  static int64_t bytes_per_slot(const config&, const cache_plan&);
  // Rows [start, end) of the slot are about to run, the last layers on those from `first` on.
  void plan(int32_t slot, int64_t start, int64_t first, int64_t end);
  // ctx as a forward left it: keeps the taps of ctx.rows.
  void keep(step_context& ctx);
  // The slot's rings hold all context rows below n_tokens.
  void load(int32_t slot, int64_t n_tokens);

  struct wanted {
    int32_t slot = 0;
    int64_t end = 0; // of the positions whose rows are wanted, those that still count
  };
  // Makes the rows that are missing, no sooner than the rings reach back.
  void catch_up(step_context& ctx, drafter&, std::span<const layer_cache> stages, std::span<const wanted>);

private:
  struct owed { // positions [from, to) have taps and no rows
    int64_t from = 0, to = 0;
    int64_t newest = 0; // end of the highest taps kept since the slot was reset
  };
  void make_rows(step_context& ctx, drafter&, std::span<const layer_cache> stages);

  backend& be_;
  int64_t max_rows_, ring_;
  tensor taps_;  // (slots, ring, taps * D)
  tensor index_; // (rows) i32: where the taps of each row lie
  row_columns columns_;
  std::vector<int32_t> places_; // what index_ holds
  std::vector<owed> slots_;
};

} // namespace troupe::deepseek_v41
