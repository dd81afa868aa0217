// The two sides of a step's rows: the short side in order of need, and the round.
#include "actors/prefill_share.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr int64_t visit_weight[n_classes] = {4, 2, 1};
constexpr int64_t rows_per_idle_plan = 64; // ageing: each plan without rows makes a prompt count as so much shorter

} // namespace

// Returns what it gave. `whole`: the rows of the step, which say what is short.
int64_t prefill_share::serve_short(std::vector<candidate>& candidates, int64_t budget, int64_t whole) {
  order_.clear();
  int64_t n_new = 0;
  for (auto& c : candidates) {
    const bool is_new = c.sequence->n_done == 0;
    n_new += is_new;
    if (is_new || c.n_left() <= whole) order_.push_back(&c);
  }
  const auto need = [](const candidate* c) { return c->n_left() - rows_per_idle_plan * c->sequence->n_idle; };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](const candidate* a, const candidate* b) { return need(a) < need(b); });
  // Each newcomer is sure of `floor` rows, whoever stands before it.
  const int64_t floor = n_new > 0 ? std::max<int64_t>(budget / (2 * n_new), 1) : 0;
  int64_t reserve = 0;
  for (const auto* c : order_)
    if (c->sequence->n_done == 0) reserve += std::min(c->n_left(), floor);
  int64_t left = budget;
  for (auto* c : order_) {
    const bool is_new = c->sequence->n_done == 0;
    const int64_t own = is_new ? std::min(c->n_left(), floor) : 0;
    reserve -= own;
    const int64_t wanted = c->n_left() <= whole ? c->n_left() : own;
    const int64_t n = std::min({wanted, std::max(left - reserve, own), left});
    c->n_rows += n;
    left -= n;
  }
  return budget - left;
}

void prefill_share::serve_round(std::vector<candidate>& candidates, int64_t budget) {
  order_.clear();
  for (auto& c : candidates)
    if (c.n_left() > 0) order_.push_back(&c);
  std::stable_sort(order_.begin(), order_.end(),
                   [](const candidate* a, const candidate* b) { return a->sequence->visit < b->sequence->visit; });
  for (size_t at = 0; budget > 0 && at < order_.size(); ++at) {
    auto& c = *order_[at];
    auto& s = *c.sequence;
    if (s.deficit == 0) s.deficit = quantum_ * visit_weight[c.turn->rank];
    const int64_t n = std::min({s.deficit, c.n_left(), budget});
    c.n_rows += n;
    s.deficit -= n;
    budget -= n;
    if (c.n_left() == 0) s.deficit = 0;
    if (s.deficit > 0) return; // the step is full: this one goes on in the next
    s.visit = ++last_visit_;
    if (c.n_left() > 0) order_.push_back(&c);
  }
}

void prefill_share::split(std::vector<candidate>& candidates, int64_t budget) {
  for (auto& c : candidates)
    if (c.sequence->visit == 0) c.sequence->visit = ++last_visit_; // behind those that were here before
  const bool any_old =
      std::any_of(candidates.begin(), candidates.end(), [](const candidate& c) { return c.sequence->n_done > 0; });
  int64_t of_round = 0;
  if (any_old) {
    credit_ += budget;
    of_round = credit_ / 4;
    credit_ %= 4;
  }
  const int64_t n_short = serve_short(candidates, budget - of_round, budget);
  serve_round(candidates, budget - n_short);
  for (auto& c : candidates) {
    if (c.n_rows > 0)
      c.sequence->n_idle = 0;
    else
      ++c.sequence->n_idle;
  }
}

} // namespace troupe
