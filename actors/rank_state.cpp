// Sequences, images and sampling of one rank.
#include "actors/rank_state.h"

#include "storage/check.h"

#include <algorithm>
#include <chrono>

namespace troupe {

namespace {

const sequence_failure* find(std::span<const sequence_failure> failures, sequence_id id) {
  for (const auto& f : failures)
    if (f.id == id) return &f;
  return nullptr;
}

// Side-table rows of the sequences that run, one after another.
class records_of_running final : public record_source {
public:
  records_of_running(const step_plan& plan, std::span<const sequence_failure> failures, record_source& all,
                     std::vector<std::byte>& memory)
      : plan_(plan), failures_(failures), all_(all), memory_(memory) {}

  std::optional<std::span<const std::byte>> take() override {
    const auto records = all_.take();
    size_t n_rows = 0;
    for (const auto& r : plan_.rows) n_rows += r.tokens.size();
    if (!records || failures_.empty() || n_rows == 0) return records;
    const size_t record_bytes = records->size() / n_rows;
    memory_.clear();
    for (size_t i = 0, at = 0; i < plan_.rows.size(); ++i) {
      const auto mine = records->subspan(at, plan_.rows[i].tokens.size() * record_bytes);
      at += mine.size();
      if (!find(failures_, plan_.rows[i].id)) memory_.insert(memory_.end(), mine.begin(), mine.end());
    }
    return memory_;
  }

private:
  const step_plan& plan_;
  std::span<const sequence_failure> failures_;
  record_source& all_;
  std::vector<std::byte>& memory_;
};

} // namespace

std::optional<std::string> rank_state::take(image_piece&& piece) {
  const int64_t size_bytes = int64_t{piece.width} * piece.height * 3;
  if (piece.sequences.empty() || piece.width <= 0 || piece.height <= 0) return "an image piece without owner or size";
  const image_key key{piece.sequences.front(), piece.image};
  auto found = image_of_.find(key);
  if (found == image_of_.end()) {
    const size_t id = next_image_++;
    auto& fresh = images_[id];
    fresh.pixels.width = piece.width;
    fresh.pixels.height = piece.height;
    fresh.pixels.grid_h = piece.grid_h;
    fresh.pixels.grid_w = piece.grid_w;
    fresh.pixels.hash = piece.hash;
    fresh.n_users = static_cast<int32_t>(piece.sequences.size());
    for (const auto s : piece.sequences) image_of_[{s, piece.image}] = id;
    found = image_of_.find(key);
  }
  auto& image = images_.at(found->second);
  auto& rgb = image.pixels.rgb;
  if (piece.offset != static_cast<int64_t>(rgb.size()) || piece.hash != image.pixels.hash ||
      piece.offset + static_cast<int64_t>(piece.bytes.size()) > size_bytes)
    return "an image piece out of order";
  if (rgb.empty()) rgb.reserve(static_cast<size_t>(size_bytes));
  rgb.insert(rgb.end(), piece.bytes.begin(), piece.bytes.end());
  return std::nullopt;
}

void rank_state::drop_images(sequence_id id, model* weights) {
  for (auto at = image_of_.lower_bound({id, 0}); at != image_of_.end() && at->first.first == id;
       at = image_of_.erase(at)) {
    const auto image = images_.find(at->second);
    if (--image->second.n_users > 0) continue;
    if (image->second.handle >= 0 && weights) weights->drop_image(image->second.handle);
    images_.erase(image);
  }
}

void rank_state::forget_sequences() {
  sequences_.clear();
  for (auto& [id, image] : images_) image.is_left_over = true;
}

void rank_state::drop_left_over(std::span<const sequence_id> wanted, model* weights) {
  for (const auto id : wanted)
    for (auto at = image_of_.lower_bound({id, 0}); at != image_of_.end() && at->first.first == id; ++at)
      images_.at(at->second).is_left_over = false;
  std::vector<sequence_id> gone;
  for (const auto& [key, id] : image_of_)
    if (images_.at(id).is_left_over) gone.push_back(key.first);
  for (const auto id : gone) drop_images(id, weights);
}

// Those that the rows show. Spans and handles of all images stand from the first row on.
std::optional<std::string> rank_state::hand_over_images(sequence& s, const planned_rows& rows, model& weights) {
  const int64_t end = rows.start + static_cast<int64_t>(rows.tokens.size());
  for (size_t i = 0; i < s.spans.size(); ++i) {
    const auto& span = s.spans[i];
    const int64_t span_end = span.start + int64_t{span.grid_h} * (span.grid_w + 1) + 2;
    if (s.handles[i] >= 0 || span_end <= rows.start || span.start >= end) continue;
    const auto found = image_of_.find({s.start.id, span.image});
    if (found == image_of_.end()) return "the pixels of an image did not reach the rank";
    auto& image = images_.at(found->second);
    if (image.handle < 0) {
      const auto& p = image.pixels;
      if (static_cast<int64_t>(p.rgb.size()) != int64_t{p.width} * p.height * 3) return "an image is incomplete";
      image.handle = weights.take_image(std::move(image.pixels)); // size and hash stay
    }
    s.handles[i] = image.handle;
  }
  return std::nullopt;
}

// The first rows of a sequence come next: where they begin, and what lies before them.
std::optional<std::string> rank_state::enter(sequence& s, const cached_prefix& c, model* weights) {
  s.cached_tokens = c.n_tokens, s.from_memory = c.from_memory, s.from_disk = c.from_disk;
  if (s.sampler) s.sampler->see_prompt(c.seen);
  for (const auto& place : s.start.images) {
    s.spans.push_back({place.start, place.grid_h, place.grid_w, place.image});
    s.handles.push_back(-1);
  }
  if (c.n_tokens == 0 || !weights) return std::nullopt;
  return snapshots_.restore(c.snapshot, s.start.slot, c.n_tokens, *weights);
}

std::vector<sequence_failure> rank_state::apply(const step_placed& placed, model* weights) {
  if (weights) snapshots_.save(placed.saves_before, *weights);
  for (const auto& e : placed.plan.ended) {
    if (!e.is_parked) drop_images(e.id, weights);
    sequences_.erase(e.id);
  }
  if (placed.plan.ends_resume) drop_left_over(placed.plan.with_images, weights);
  for (const auto& start : placed.plan.started) {
    auto& s = sequences_[start.id];
    s.start = start;
    if (!samples_) continue;
    s.sampler.emplace(start.sampling);
    for (const auto id : start.generated) s.sampler->see_generated(id);
  }
  if (weights)
    for (const auto& m : placed.moves) snapshots_.move(m, *weights);
  std::vector<sequence_failure> failures;
  for (const auto& c : placed.cached)
    if (auto why = enter(sequences_.at(c.id), c, weights)) failures.push_back({c.id, std::move(*why), 500});
  for (const auto& b : placed.blocks) {
    auto& table = sequences_.at(b.id).blocks;
    for (const auto id : b.blocks) table.push_back(static_cast<int32_t>(id));
  }
  return failures;
}

std::vector<sequence_failure> rank_state::begin(const step_placed& placed, model* weights) {
  auto failures = apply(placed, weights);
  if (!weights) return failures;
  for (const auto& r : placed.plan.rows) {
    auto& s = sequences_.at(r.id);
    if (s.spans.empty()) continue;
    if (auto why = hand_over_images(s, r, *weights)) failures.push_back({r.id, std::move(*why), 500});
  }
  return failures;
}

void rank_state::end(const step_placed& placed, std::span<const sequence_failure> failures, model& weights,
                     const write_order& write) {
  auto saves = placed.saves_after;
  for (const auto& f : failures)
    for (const auto& r : placed.plan.rows)
      if (r.id == f.id) std::erase_if(saves, [&r](const snapshot_save& s) { return s.slot == r.slot; });
  snapshots_.save(saves, weights);
  if (write)
    for (const auto& w : placed.writes) write(w, snapshots_.payload(w, weights));
  snapshots_.drop(placed.dropped);
}

void rank_state::accept(sequence& s, const planned_rows& row, size_t first, sequence_result& out) {
  const auto drafts = std::span(row.tokens).last(static_cast<size_t>(row.n_drafts));
  const int64_t position = row.start + static_cast<int64_t>(row.tokens.size() - drafts.size());
  out.n_drafts = row.n_drafts;
  try {
    out.n_accepted = accept_drafts(*s.sampler, drawn_, first, drafts, position, rules_, batch_->vocabulary, out.tokens);
  } catch (const std::runtime_error& e) { // a logit that is not a number, or every id masked by the request itself
    out.n_accepted = static_cast<int32_t>(out.tokens.size());
    if (!out.tokens.empty()) return; // they count; the next step comes to the same row and fails with it alone
    out.failure = e.what();
    out.status = drawn_.ids[first] == sample_unsound ? 500 : 400;
  }
}

// Rows of rejected drafts stay in the caches: they lie above the newest token, nothing reads them there, and the next
// step writes over them (model.md section 4).
void rank_state::draft(const step_plan& plan, std::vector<sequence_result>& results, model& weights) {
  requests_.clear();
  requesters_.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& r = plan.rows[i];
    const auto& got = results[i];
    if (!r.wants_drafts || got.tokens.empty() || !got.failure.empty()) continue;
    const int32_t newest = got.tokens.back().id;
    if (sequences_.at(r.id).sampler->ends_with(newest, rules_.eos)) continue;
    const int64_t first = r.start + static_cast<int64_t>(r.tokens.size()) - r.n_drafts;
    requests_.push_back({r.slot, first + static_cast<int64_t>(got.tokens.size()) - 1, newest});
    requesters_.push_back(i);
  }
  if (requests_.empty() || !weights.can_draft()) return;
  const auto found = weights.draft_next(requests_);
  const auto block = static_cast<std::ptrdiff_t>(weights.info().draft_block);
  TROUPE_CHECK(found.ids.size() == requests_.size() * static_cast<size_t>(block), "a block of drafts for each request");
  for (size_t k = 0; k < requesters_.size(); ++k) {
    auto& out = results[requesters_[k]];
    const auto at = static_cast<std::ptrdiff_t>(k) * block;
    out.next_drafts.assign(found.ids.begin() + at, found.ids.begin() + at + block);
    out.confidence.assign(found.confidence.begin() + at, found.confidence.begin() + at + block);
  }
}

// Prompts are many rows, of which nothing is launched in advance.
bool rank_state::runs_ahead(const step_plan& plan, const model& weights) const {
  int64_t n_rows = 0;
  for (const auto& r : plan.rows) {
    if (r.start < sequences_.at(r.id).start.n_asked()) return false;
    n_rows += static_cast<int64_t>(r.tokens.size());
  }
  return weights.runs_ahead(n_rows);
}

void rank_state::take_rows(const step_plan& plan, std::span<const sequence_failure> failures, model& weights) {
  rows_.clear();
  wishes_.clear();
  first_drawn_.assign(plan.rows.size(), std::nullopt);
  if (!batch_) batch_.emplace(weights.info().vocabulary);
  batch_->clear();
  drawn_.ids.clear();
  size_t n_drawn = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const auto& r = plan.rows[i];
    if (find(failures, r.id)) continue;
    auto& s = sequences_.at(r.id);
    auto& row = rows_.emplace_back();
    row.slot = r.slot;
    row.start = r.start;
    row.tokens = r.tokens;
    row.blocks = s.blocks;
    row.images = s.spans;
    row.image_handles = s.handles;
    row.n_prompt = s.start.n_asked();
    row.n_logits = r.samples ? r.n_drafts + 1 : 0;
    if (s.sampler && r.start < s.start.n_prompt) s.sampler->see_prompt(r.tokens);
    if (!samples_ || !r.samples) continue;
    first_drawn_[i] = n_drawn;
    n_drawn += static_cast<size_t>(row.n_logits);
    const auto drafts = std::span(r.tokens).last(static_cast<size_t>(r.n_drafts));
    const int64_t position = r.start + static_cast<int64_t>(r.tokens.size() - drafts.size());
    add_draft_rules(*s.sampler, drafts, position, rules_, *batch_);
    if (r.wants_drafts && weights.can_draft()) wishes_.push_back({rows_.size() - 1, r.n_drafts});
  }
}

void rank_state::run(const step_plan& plan, std::span<const sequence_failure> failures, record_source& records,
                     model& weights) {
  take_rows(plan, failures, weights);
  if (rows_.empty()) return;
  records_of_running mine(plan, failures, records, records_);
  if (samples_)
    weights.forward_and_sample(rows_, mine, *batch_, drawn_, wishes_);
  else
    weights.forward(rows_, mine);
}

std::vector<sequence_result> rank_state::answer(const step_plan& plan, std::span<const sequence_failure> failures,
                                                model& weights, int64_t& draft_us) {
  std::vector<sequence_result> results;
  if (!samples_) return results;
  results.reserve(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const auto& r = plan.rows[i];
    auto& s = sequences_.at(r.id);
    auto& out = results.emplace_back();
    out.id = r.id;
    if (const auto* failure = find(failures, r.id)) {
      out.failure = failure->why;
      out.status = failure->status;
      continue;
    }
    out.cached_tokens = s.cached_tokens, out.from_memory = s.from_memory, out.from_disk = s.from_disk;
    out.n_tokens = r.start + static_cast<int64_t>(r.tokens.size()) - r.n_drafts;
    if (!first_drawn_[i]) continue;
    TROUPE_CHECK(*first_drawn_[i] + static_cast<size_t>(r.n_drafts) < drawn_.ids.size(),
                 "every row that was asked for has a token");
    accept(s, r, *first_drawn_[i], out);
    // The newest token is not computed, not even as an accepted draft whose own logits were broken.
    if (!out.tokens.empty()) out.n_tokens += static_cast<int64_t>(out.tokens.size()) - 1;
  }
  const auto began = now_();
  draft(plan, results, weights);
  draft_us = std::chrono::duration_cast<std::chrono::microseconds>(now_() - began).count();
  return results;
}

} // namespace troupe
