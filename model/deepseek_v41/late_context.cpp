// Which context rows a slot still owes, and making them.
#include "model/deepseek_v41/late_context.h"

#include <algorithm>
#include <utility>

namespace troupe::deepseek_v41 {

late_context::late_context(backend& be, const config& c, const cache_plan& p, int64_t max_rows)
    : be_(be), max_rows_(max_rows), ring_(p.ring), columns_(be, max_rows, "context rows") {
  const auto taps = static_cast<int64_t>(c.draft.taps.size());
  taps_ = be.allocate(be.activation_type(), {p.slots, ring_, taps * c.dim}, "taps of the drafts");
  index_ = be.allocate(dtype::i32, {max_rows}, "row index");
  slots_.resize(static_cast<size_t>(p.slots));
}

int64_t late_context::bytes_per_slot(const config& c, const cache_plan& p) {
  return p.ring * static_cast<int64_t>(c.draft.taps.size()) * c.dim * int64_t{sizeof(float)};
}

void late_context::plan(int32_t slot, int64_t start, int64_t first, int64_t end) {
  auto& s = slots_[static_cast<size_t>(slot)];
  if (start == 0) s = {};
  first = std::min(std::max(first, start), end);
  s.to = std::min(s.to, start); // what lay above was rejected
  if (s.from >= s.to || first > s.to) s.from = first;
  s.to = end;
  s.newest = std::max(s.newest, end);
}

void late_context::keep(step_context& ctx) {
  const int64_t n = ctx.rows.n;
  be_.write_rings(taps_, ctx.b.taps.slice(0, n).reshape({n, taps_.shape[2]}), ctx.rows.rows);
}

void late_context::load(int32_t slot, int64_t n_tokens) {
  slots_[static_cast<size_t>(slot)] = {n_tokens, n_tokens, n_tokens};
}

void late_context::catch_up(step_context& ctx, drafter& drafts, std::span<const layer_cache> stages,
                            std::span<const wanted> slots) {
  columns_.clear();
  places_.clear();
  for (const wanted& w : slots) {
    auto& s = slots_[static_cast<size_t>(w.slot)];
    const int64_t end = std::min(w.end, s.to);
    for (int64_t at = std::max(s.from, s.newest - ring_); at < end; ++at) {
      columns_.add({.slot = w.slot, .position = at});
      places_.push_back(static_cast<int32_t>(w.slot * ring_ + at % ring_));
      if (columns_.n() == max_rows_) make_rows(ctx, drafts, stages);
    }
    s.from = std::max(s.from, end);
  }
  if (columns_.n() > 0) make_rows(ctx, drafts, stages);
}

void late_context::make_rows(step_context& ctx, drafter& drafts, std::span<const layer_cache> stages) {
  const int64_t n = columns_.n(), width = taps_.shape[2];
  columns_.upload();
  be_.upload(index_, places_.data(), n * 4);
  ctx.run_on(columns_.view(n, {}));
  be_.copy_rows(ctx.b.taps.slice(0, n).reshape({n, width}), {}, taps_.reshape({taps_.shape[0] * ring_, width}),
                index_.slice(0, n));
  auto seen = std::exchange(ctx.seen, {}); // an observer was shown these rows by the step that they are of
  drafts.add_context(ctx, stages);
  ctx.seen = std::move(seen);
  columns_.clear();
  places_.clear();
}

} // namespace troupe::deepseek_v41
