// Guesses, and the graphs that steps of few rows are replayed from.
#include "model/deepseek_v41/model_v41.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::deepseek_v41 {
namespace {

void to_probabilities(draft_tokens& found) { // dspark.md section 4
  for (float& c : found.confidence) c = 1 / (1 + std::exp(-c));
}

} // namespace

draft_result model_v41::draft(std::span<const draft_anchor> anchors, const draft_choice& choose) {
  TROUPE_CHECK(drafter_ != nullptr, "drafting needs the draft weights");
  early_.clear();
  catch_up(anchors);
  return drafter_->draft(ctx_, draft_caches(), with_floors(anchors), choose);
}

void model_v41::catch_up(std::span<const draft_anchor> anchors) {
  if (!late_context_) return;
  std::vector<late_context::wanted> wanted;
  for (const draft_anchor& a : anchors) wanted.push_back({a.slot, a.position});
  late_context_->catch_up(ctx_, *drafter_, draft_caches(), wanted);
}

std::vector<draft_anchor> model_v41::with_floors(std::span<const draft_anchor> anchors) const {
  std::vector<draft_anchor> out(anchors.begin(), anchors.end());
  for (draft_anchor& a : out) a.floor = floor_[static_cast<size_t>(a.slot)];
  return out;
}

draft_tokens model_v41::draft_next(std::span<const draft_request> requests) {
  TROUPE_CHECK(drafter_ != nullptr, "drafting needs the draft weights");
  if (requests.empty()) return {};
  if (auto early = take_early(requests)) return std::move(*early);
  std::vector<draft_anchor> anchors;
  for (const draft_request& r : requests) anchors.push_back({r.slot, r.position, r.token});
  anchors = with_floors(anchors);
  catch_up(anchors);
  draft_tokens found;
  if (!drafter_->can_guess()) {
    draft_result slow = drafter_->draft(ctx_, draft_caches(), anchors, greedy_choice);
    found = {std::move(slow.tokens), std::move(slow.confidence)};
  } else {
    const auto n = static_cast<int64_t>(anchors.size());
    drafter_->upload(anchors);
    if (n < static_cast<int64_t>(draft_graphs_.size())) {
      be_.replay(*draft_graphs_[static_cast<size_t>(n)]);
      ++counts_.replayed;
    } else {
      drafter_->guess(ctx_, draft_caches(), n);
      if (!draft_graphs_.empty()) ++counts_.launched;
    }
    found = drafter_->fetch(n);
  }
  to_probabilities(found);
  return found;
}

int64_t model_v41::first_logit(size_t sequence) const {
  int64_t first = 0;
  for (size_t i = 0; i < sequence; ++i) first += wanted_[i].n;
  return first;
}

bool model_v41::draft_early(std::span<const sequence_rows> sequences, std::span<const draft_wish> wishes,
                            tensor drawn) {
  const auto n = static_cast<int64_t>(wishes.size());
  if (n == 0 || n >= static_cast<int64_t>(draft_graphs_.size()) || ctx_.seen || late_context_) return false;
  std::vector<draft_anchor> anchors; // of the first token drawn, until the device knows how many drafts were right
  std::vector<int32_t> requests;
  for (const draft_wish& w : wishes) {
    const sequence_rows& s = sequences[w.sequence];
    TROUPE_CHECK(w.n_drafts >= 0 && s.n_logits == w.n_drafts + 1, "a wish has logits of all its drafts");
    const int64_t position = s.start + static_cast<int64_t>(s.tokens.size()) - w.n_drafts;
    anchors.push_back({s.slot, position, 0});
    requests.insert(requests.end(),
                    {static_cast<int32_t>(first_logit(w.sequence)), static_cast<int32_t>(wanted_[w.sequence].first_row),
                     w.n_drafts, static_cast<int32_t>(position)});
  }
  drafter_->upload(with_floors(anchors));
  anchor_args a = drafter_->anchors(n);
  a.drawn = drawn;
  const row_columns& rows = options_.prefill == prefill_mode::tail ? *tail_columns_ : *all_columns_;
  a.step_ids = rows.view(rows.n(), {}).ids;
  a.requests = anchor_requests_.slice(0, n);
  be_.upload(a.requests, requests.data(), a.requests.size_bytes());
  be_.place_anchors(a);
  be_.replay(*draft_graphs_[static_cast<size_t>(n)]);
  ++counts_.replayed;
  return true;
}

void model_v41::note_early(std::span<const sequence_rows> sequences, std::span<const draft_wish> wishes,
                           std::span<const int32_t> ids) {
  for (const draft_wish& w : wishes) {
    const sequence_rows& s = sequences[w.sequence];
    const auto drafts = s.tokens.last(static_cast<size_t>(w.n_drafts));
    const auto drawn = ids.subspan(static_cast<size_t>(first_logit(w.sequence)));
    const auto right = std::mismatch(drafts.begin(), drafts.end(), drawn.begin()).first - drafts.begin();
    const int64_t position = s.start + static_cast<int64_t>(s.tokens.size()) - w.n_drafts + right;
    early_.push_back({s.slot, position, drawn[static_cast<size_t>(right)]});
  }
}

std::optional<draft_tokens> model_v41::take_early(std::span<const draft_request> requests) {
  const auto early = std::exchange(early_, {});
  std::vector<size_t> places;
  for (const draft_request& r : requests) {
    const auto at = std::find(early.begin(), early.end(), r);
    if (at == early.end()) return std::nullopt;
    places.push_back(static_cast<size_t>(at - early.begin()));
  }
  const draft_tokens all = drafter_->fetch(static_cast<int64_t>(early.size()));
  draft_tokens found;
  const auto block = static_cast<std::ptrdiff_t>(info_.draft_block);
  for (const size_t place : places) {
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(place) * block;
    found.ids.insert(found.ids.end(), all.ids.begin() + from, all.ids.begin() + from + block);
    found.confidence.insert(found.confidence.end(), all.confidence.begin() + from,
                            all.confidence.begin() + from + block);
  }
  to_probabilities(found);
  return found;
}

void model_v41::capture_steps(int32_t max_rows) {
  early_.clear();
  step_graphs_.clear();
  draft_graphs_.clear();
  if (!be_.can_capture() || max_rows < 1) return;
  const int64_t rows = std::min<int64_t>({max_rows, max_rows_, ends_->piece(), info_.block_tokens});
  step_graphs_.resize(static_cast<size_t>(rows) + 1);
  if (!tables_.empty()) {
    records_mail_ = be_.make_mailbox(mailbox_bytes(rows), "Engram records of a step");
    records_mail_->post(); // zero bytes, for the runs here
  }
  for (int64_t n = 1; n <= rows; ++n) {
    for (row_columns* columns : {&*all_columns_, &*tail_columns_}) { // positions 0, 1, .. of slot 0, all in block 0
      columns->clear();
      for (int64_t i = 0; i < n; ++i) columns->add({.position = i});
      columns->upload();
    }
    run_step(n, n, n, records_mail_.get()); // loads what is loaded at a first launch
    step_graphs_[static_cast<size_t>(n)] = be_.capture([this, n] { run_step(n, n, n, records_mail_.get()); });
  }
  if (!drafter_ || !drafter_->can_guess()) return;
  const int64_t sequences = std::min<int64_t>(options_.max_sequences, rows);
  draft_graphs_.resize(static_cast<size_t>(sequences) + 1);
  for (int64_t n = 1; n <= sequences; ++n) {
    drafter_->upload(std::vector<draft_anchor>(static_cast<size_t>(n), {.position = 1}));
    drafter_->guess(ctx_, draft_caches(), n);
    draft_graphs_[static_cast<size_t>(n)] = be_.capture([this, n] { drafter_->guess(ctx_, draft_caches(), n); });
  }
}

} // namespace troupe::deepseek_v41
