// The draft stages are blocks like the backbone's; only the Markov correction is sequential.
#include "model/deepseek_v41/draft.h"

#include <algorithm>
#include <bit>

namespace troupe::deepseek_v41 {

int32_t greedy_choice(size_t, int32_t, std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

drafter::drafter(backend& be, const config& c, draft_weights w, vocabulary_ends& ends, int64_t max_rows,
                 int64_t max_sequences)
    : be_(be), c_(c), w_(std::move(w)), ends_(ends), columns_(be, max_rows, "draft rows") {
  normed_ = be.allocate(be.activation_type(), {max_rows, c.dim}, "draft rows");
  markov_ = be.allocate(be.activation_type(), {max_sequences, c.draft.markov_rank}, "Markov rows");
  markov_ids_ = be.allocate(dtype::i32, {max_sequences}, "Markov ids");
  bias_.resize(static_cast<size_t>(max_sequences * c.vocabulary));
  const int64_t block = c.draft.block;
  const int64_t most = block * max_sequences; // guesses of a round
  found_ = be.allocate(dtype::f32, {3 * most + max_sequences}, "guesses and their confidence");
  guesses_ = tensor(found_.f32(), dtype::i32, {most + max_sequences});
  guess_confidence_ = tensor(found_.f32() + most + max_sequences, dtype::f32, {most});
  confidence_ = tensor(found_.f32() + 2 * most + max_sequences, dtype::f32, {most, 1});
  if (!can_guess()) return;
  part_ = std::min(ends.piece() / block, max_sequences);
  part_bias_ = be.allocate(dtype::f32, {part_, c.vocabulary}, "Markov logits");
  part_rows_ = be.allocate(dtype::i32, {block, part_}, "rows of guesses");
  std::vector<int32_t> rows;
  for (int64_t j = 0; j < block; ++j)
    for (int64_t s = 0; s < part_; ++s) rows.push_back(static_cast<int32_t>(s * block + j));
  be.upload(part_rows_, rows.data(), part_rows_.size_bytes());
}

void drafter::add_context(step_context& ctx, std::span<const layer_cache> stages) {
  const int64_t n = ctx.rows.n;
  const tensor taps = ctx.b.taps.slice(0, n), x = ctx.b.x.slice(0, n), kv = ctx.b.kv.slice(0, n);
  ctx.layer = -1;
  ctx.show("main_hidden", taps);
  be_.linear(x, taps.reshape({n, taps.row_elements()}), *w_.main_proj);
  be_.rms_norm(x, x, w_.main_norm, c_.eps);
  for (size_t s = 0; s < w_.stages.size(); ++s) {
    ctx.layer = c_.layers + static_cast<int32_t>(s);
    window_row(ctx, w_.stages[s].attention, ctx.window_frequencies, kv, x);
    be_.write_rings(stages[s].ring, kv, ctx.rows.rows);
    ctx.show("context_kv", kv);
  }
}

draft_result drafter::draft(step_context& ctx, std::span<const layer_cache> stages,
                            std::span<const draft_anchor> anchors, const draft_choice& choose) {
  const auto n = static_cast<int64_t>(anchors.size()) * c_.draft.block;
  draft_result out;
  if (n == 0) return out;
  upload(anchors);
  run_stages(ctx, stages, n);
  const tensor hidden = ctx.b.x.slice(0, n), normed = normed_.slice(0, n);
  ctx.layer = -1;
  ctx.show("draft_hidden", hidden);
  be_.rms_norm(normed, hidden, w_.norm, c_.eps);
  out.logits.resize(static_cast<size_t>(n * c_.vocabulary));
  ends_.logits(ends_.head(), normed, out.logits);
  if (ctx.seen) { // on the device for the observer, as all that it sees
    const tensor seen = be_.allocate(dtype::f32, {n, c_.vocabulary}, "draft logits for an observer");
    be_.upload(seen, out.logits.data(), seen.size_bytes());
    ctx.show("draft_base_logits", seen);
  }
  out.confidence.resize(static_cast<size_t>(n));
  be_.linear(confidence_.slice(0, n), hidden, *w_.confidence_x);
  be_.download(out.confidence.data(), confidence_, n * 4);
  add_markov(ctx, anchors, choose, out);
  return out;
}

void drafter::upload(std::span<const draft_anchor> anchors) {
  columns_.clear();
  ids_.clear();
  for (const draft_anchor& a : anchors) {
    ids_.push_back(a.token);
    for (int32_t j = 0, first = static_cast<int32_t>(columns_.n()); j < c_.draft.block; ++j)
      columns_.add({.id = j == 0 ? a.token : c_.draft.noise_id,
                    .slot = a.slot,
                    .position = a.position + j,
                    .first_row = first,
                    .floor = a.floor});
  }
  columns_.upload();
  be_.upload(guesses_, ids_.data(), static_cast<int64_t>(ids_.size()) * 4);
}

anchor_args drafter::anchors(int64_t n) const {
  const row_set rows = columns_.view(n * c_.draft.block, {});
  anchor_args a;
  a.guesses = guesses_.slice(0, n);
  a.ids = rows.ids;
  a.positions = rows.rows.position;
  return a;
}

void drafter::run_stages(step_context& ctx, std::span<const layer_cache> stages, int64_t n) {
  ctx.run_on(columns_.view(n, {})); // all of the decode class
  ctx.drafting = true;
  const tensor x = ctx.b.x.slice(0, n);
  ends_.embed(x, ctx.rows.ids);
  ctx.h = ctx.b.h.slice(0, n);
  ctx.pre = ctx.b.one_hot.slice(0, n);
  be_.spread(ctx.h, x);
  bool has_input = false;
  for (size_t s = 0; s < w_.stages.size(); ++s) {
    ctx.layer = c_.layers + static_cast<int32_t>(s);
    const block_weights* next = s + 1 < w_.stages.size() ? &w_.stages[s + 1] : nullptr;
    has_input = run_block(ctx, w_.stages[s], stages[s], {next, has_input});
  }
  be_.fold(x, ctx.h, ctx.pre);
  ctx.drafting = false;
}

void drafter::add_markov(step_context&, std::span<const draft_anchor> anchors, const draft_choice& choose,
                         draft_result& out) {
  const size_t n = anchors.size(), block = static_cast<size_t>(c_.draft.block), v = static_cast<size_t>(c_.vocabulary);
  out.tokens.resize(n * block);
  std::vector<int32_t> previous(n);
  std::vector<float> confidence(n);
  for (size_t s = 0; s < n; ++s) previous[s] = anchors[s].token;
  const auto rows = static_cast<int64_t>(n);
  const tensor ids = markov_ids_.slice(0, rows), e = markov_.slice(0, rows), part = confidence_.slice(0, rows);
  for (size_t j = 0; j < block; ++j) {
    be_.upload(ids, previous.data(), ids.size_bytes());
    be_.embed(e, w_.markov_embed, 0, ids);
    ends_.logits(*w_.markov_head, e, bias_);
    be_.linear(part, e, *w_.confidence_e);
    be_.download(confidence.data(), part, part.size_bytes());
    for (size_t s = 0; s < n; ++s) {
      const size_t at = s * block + j;
      const std::span<float> logits = std::span(out.logits).subspan(at * v, v);
      for (size_t i = 0; i < v; ++i) logits[i] += bias_[s * v + i];
      out.confidence[at] += confidence[s];
      out.tokens[at] = previous[s] = choose(s, static_cast<int32_t>(j), logits);
    }
  }
}

void drafter::guess(step_context& ctx, std::span<const layer_cache> stages, int64_t n) {
  const int64_t n_rows = n * c_.draft.block;
  run_stages(ctx, stages, n_rows);
  const tensor hidden = ctx.b.x.slice(0, n_rows);
  be_.rms_norm(normed_.slice(0, n_rows), hidden, w_.norm, c_.eps);
  be_.linear(confidence_.slice(0, n_rows), hidden, *w_.confidence_x);
  for (int64_t first = 0; first < n; first += part_) guess_part(n, first, std::min(part_, n - first));
}

// Sequences [first, first + n_part) of n: the logits of their blocks, then step by step.
void drafter::guess_part(int64_t n, int64_t first, int64_t n_part) {
  const int64_t block = c_.draft.block;
  const tensor logits = ends_.project(ends_.head(), normed_.slice(first * block, n_part * block));
  const tensor e = markov_.slice(0, n_part), bias = part_bias_.slice(0, n_part);
  for (int64_t j = 0; j < block; ++j) {
    be_.embed(e, w_.markov_embed, 0, guesses_.slice(j * n + first, n_part));
    be_.linear(bias, e, *w_.markov_head);
    be_.linear(guess_confidence_.slice(j * n + first, n_part), e, *w_.confidence_e);
    be_.arg_max(guesses_.slice((j + 1) * n + first, n_part), logits, part_rows_.slice(j, 1).reshape({part_}), bias);
  }
}

draft_tokens drafter::fetch(int64_t n) {
  const auto block = static_cast<size_t>(c_.draft.block), sequences = static_cast<size_t>(n);
  draft_tokens out;
  out.ids.resize(block * sequences);
  out.confidence.resize(block * sequences);
  fetched_.resize(static_cast<size_t>(found_.n_elements()));
  be_.download(fetched_.data(), found_, found_.size_bytes());
  const float *ids = fetched_.data(), *parts = ids + guesses_.n_elements(),
              *of_rows = parts + guess_confidence_.n_elements();
  for (size_t s = 0; s < sequences; ++s)
    for (size_t j = 0; j < block; ++j) {
      out.ids[s * block + j] = std::bit_cast<int32_t>(ids[(j + 1) * sequences + s]);
      out.confidence[s * block + j] = of_rows[s * block + j] + parts[j * sequences + s];
    }
  return out;
}

} // namespace troupe::deepseek_v41
