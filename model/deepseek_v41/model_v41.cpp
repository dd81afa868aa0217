// Making the model, and its forward.
#include "model/deepseek_v41/model_v41.h"

#include "model/deepseek_v41/snapshot.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace troupe::deepseek_v41 {
namespace {

constexpr int64_t logit_piece_rows = 64; // bounds the device memory of logits

tensor upload_floats(backend& be, const std::vector<float>& v, const std::string& what) {
  const tensor t = be.allocate(dtype::f32, {static_cast<int64_t>(v.size())}, what);
  be.upload(t, v.data(), t.size_bytes());
  return t;
}

} // namespace

model_v41::model_v41(backend& be, const model_options& options, const load_progress& progress)
    : be_(be), options_(options), config_(read_config(options.folder)),
      info_(info_of(config_, options.folder)), ctx_{be, config_, share_, buffers_, {}, {}, {},   true,
                                                    {}, {},      {},     {},       {}, 0,  false} {
  if (options.max_sequences < 1 || options.n_blocks < 1 || options.max_rows < 1)
    throw std::runtime_error("model options: expected at least one sequence, block and row");
  options_.load_draft = options.load_draft && config_.draft.stages > 0;
  options_.load_vision = options.load_vision && config_.vision.layers > 0;
  const checkpoint from(options.folder);
  from.require(options_.load_draft, options_.load_vision);
  max_rows_ =
      std::max<int64_t>(options.max_rows, options_.load_draft ? options.max_sequences * config_.draft.block : 0);
  weight_loader weights(from, be);
  load(from, weights, progress);
  from.files().drop_cache();

  if (be.n_ranks() == 1) sampler_ = be.make_sampler(config_.vocabulary, ends_->piece()); // else no rank has all logits
  cache_plan_ = plan_caches(config_, options.caches.value_or(be.preferred_caches()), options.max_sequences,
                            options.n_blocks, info_.block_tokens, options_.load_draft);
  caches_ = make_caches(be, config_, cache_plan_, options_.load_draft);
  if (late_context::is_used(drafter_ != nullptr, be.preferred_caches())) {
    TROUPE_CHECK(!be.has_row_classes(), "a context row has the same bits whenever it is made");
    late_context_ = std::make_unique<late_context>(be, config_, cache_plan_, max_rows_);
  }
  all_columns_.emplace(be, max_rows_, "rows of a step");
  tail_columns_.emplace(be, max_rows_, "tail rows of a step");
  const int64_t max_blocks = std::min(options.n_blocks, (info_.context + info_.block_tokens - 1) / info_.block_tokens);
  block_tables_ = be.allocate(dtype::i32, {options.max_sequences, max_blocks}, "block tables");
  tail_index_ = be.allocate(dtype::i32, {max_rows_}, "row index");
  head_index_ = be.allocate(dtype::i32, {max_rows_}, "row index");
  tables_host_.assign(static_cast<size_t>(options.max_sequences * max_blocks), 0);
  head_input_ = be.allocate(be.activation_type(), {max_rows_, config_.dim}, "head input");
  floor_.resize(static_cast<size_t>(options.max_sequences));
  newest_.resize(static_cast<size_t>(options.max_sequences));
  snapshot_rows_ = snapshot_rows(config_, options_.load_draft);
  slack_ = deepseek_v41::snapshot_slack(config_, cache_plan_, options_.load_draft);
}

void model_v41::round_caches(bool on) {
  ctx_.round_caches = on;
  if (on || cache_plan_.form == cache_form::floats) return;
  cache_plan_.form = cache_form::floats;
  caches_ = make_caches(be_, config_, cache_plan_, options_.load_draft);
}

void model_v41::load(const checkpoint& from, weight_loader& weights, const load_progress& progress) {
  share_ = weights.share();
  weights.progress = [&](double part) {
    if (progress) progress("weights", part);
  };
  ctx_.window_frequencies = upload_floats(be_, rope_frequencies(config_, false), "rope frequencies");
  ctx_.compressed_frequencies = upload_floats(be_, rope_frequencies(config_, true), "rope frequencies");
  ends_ = std::make_unique<vocabulary_ends>(be_, weights, std::min(max_rows_, logit_piece_rows));
  final_norm_ = weights.norm("norm.weight", config_.dim);
  for (int32_t l = 0; l < config_.layers; ++l) layers_.push_back(weights.layer(l));
  for (size_t s = 0; s < config_.engram.layers.size(); ++s) tables_.push_back(from.table_at(static_cast<int32_t>(s)));
  buffers_ = make_work_buffers(be_, config_, share_, tables_, max_rows_, options_.load_draft);
  if (options_.load_draft) {
    drafter_ = std::make_unique<drafter>(be_, config_, weights.draft(), *ends_, max_rows_, options_.max_sequences);
    anchor_requests_ = be_.allocate(dtype::i32, {options_.max_sequences, 4}, "where drafts begin");
  }
  if (options_.load_vision) images_ = std::make_unique<image_rows>(be_, config_, weights.vision());
  if (progress) progress("weights", 1.0);
}

void model_v41::observe(observer seen, int64_t max_entries) {
  ctx_.seen = seen;
  buffers_.scores = seen ? be_.allocate(dtype::f32, {max_rows_, max_entries}, "index scores") : tensor{};
  if (!images_) return;
  images_->tower().seen = nullptr;
  if (seen) images_->tower().seen = [seen](std::string_view name, tensor t) { seen(name, -1, t); };
}

std::span<const float> model_v41::forward(std::span<const sequence_rows> sequences, record_source& records) {
  return read_logits(run(sequences, records));
}

void model_v41::forward_and_sample(std::span<const sequence_rows> sequences, record_source& records,
                                   const sample_batch& batch, sampled_rows& out, std::span<const draft_wish> next) {
  const int64_t n = run(sequences, records);
  TROUPE_CHECK(n == static_cast<int64_t>(batch.rows.size()), "a row of rules for each logit wanted");
  out.ids.clear();
  if (n == 0) return;
  if (sampler_ && n <= ends_->piece() && sampler_->has_room(batch)) {
    const tensor drawn = sampler_->begin(ends_->projected(ends_->head(), n), batch);
    const bool is_early = draft_early(sequences, next, drawn);
    sampler_->end(out);
    if (is_early) note_early(sequences, next, out.ids);
    return;
  }
  read_logits(n);
  sample_in_memory(std::span(logits_).first(static_cast<size_t>(n * config_.vocabulary)), batch, out);
}

int64_t model_v41::run(std::span<const sequence_rows> sequences, record_source& records) {
  plan_rows(sequences);
  const int64_t n = all_columns_->n();
  if (n == 0) return 0;
  upload_inputs();
  int64_t n_wanted = 0;
  for (const wanted_logits& w : wanted_) n_wanted += w.n;
  const bool is_step = decodes_only_ && n_wanted > 0;
  if (is_step && n < static_cast<int64_t>(step_graphs_.size()) && !ctx_.seen) {
    replay_step(n, records);
    ++counts_.replayed;
  } else {
    upload_records(records.take(), n);
    run_step(n, tail_columns_->n(), n_wanted, nullptr);
    if (is_step && !step_graphs_.empty()) ++counts_.launched;
  }
  return n_wanted;
}

void model_v41::plan_rows(std::span<const sequence_rows> sequences) {
  early_.clear();
  all_columns_->clear();
  tail_columns_->clear();
  tail_rows_.clear();
  step_images_.clear();
  record_rows_.clear();
  decodes_only_ = true;
  TROUPE_CHECK(static_cast<int64_t>(sequences.size()) <= options_.max_sequences,
               "a step has at most one entry for each slot");
  wanted_.assign(sequences.size(), {});
  // Prompts, then what leaves its prompt in this step, then the rest: with at most one of the second kind there are two
  // runs of a row class.
  for (const int kind : {0, 1, 2}) {
    int64_t first_record = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const sequence_rows& s = sequences[i];
      const auto n = static_cast<int64_t>(s.tokens.size());
      if (kind == (s.start + n <= s.n_prompt ? 0 : s.start < s.n_prompt ? 1 : 2))
        wanted_[i] = plan_sequence(s, first_record);
      first_record += n;
    }
  }
}

// A slot's row of the block tables, as far as it changed.
void model_v41::plan_table(int32_t slot, std::span<const int32_t> blocks) {
  const int64_t first = slot * block_tables_.shape[1];
  const auto held = tables_host_.begin() + first;
  const auto at = std::mismatch(blocks.begin(), blocks.end(), held).first;
  if (at == blocks.end()) return;
  std::copy(at, blocks.end(), held + (at - blocks.begin()));
  const int64_t from = first + (at - blocks.begin()), n = blocks.end() - at;
  const tensor changed(block_tables_.i32() + from, dtype::i32, {n});
  be_.upload(changed, tables_host_.data() + from, changed.size_bytes());
}

model_v41::wanted_logits model_v41::plan_sequence(const sequence_rows& s, int64_t first_record) {
  const auto n = static_cast<int64_t>(s.tokens.size()), width = block_tables_.shape[1];
  const int64_t end = s.start + n;
  TROUPE_CHECK(s.slot >= 0 && s.slot < options_.max_sequences, "a slot number is below max_sequences");
  TROUPE_CHECK(static_cast<int64_t>(s.blocks.size()) <= width &&
                   static_cast<int64_t>(s.blocks.size()) * info_.block_tokens >= end,
               "a block table covers its rows and fits the context");
  for (const int32_t b : s.blocks) TROUPE_CHECK(b >= 0 && b < options_.n_blocks, "a block number is below n_blocks");
  plan_table(s.slot, s.blocks);
  if (s.start < s.n_prompt) decodes_only_ = false;

  const bool tail = options_.prefill == prefill_mode::tail && s.n_prompt > 0;
  const int64_t first_late = tail ? std::max<int64_t>(s.n_prompt - options_.tail_tokens, 0) : 0;
  // A sequence that goes on inside its tail, or behind what a snapshot holds, sees the rows that are there.
  int64_t& floor = floor_[static_cast<size_t>(s.slot)];
  if (s.start <= first_late) floor = first_late;
  int64_t& newest = newest_[static_cast<size_t>(s.slot)];
  newest = s.start == 0 ? end : std::max(newest, end);
  if (late_context_) late_context_->plan(s.slot, s.start, first_late, end);
  const auto first_row = static_cast<int32_t>(all_columns_->n());
  const auto first_tail = static_cast<int32_t>(tail_columns_->n());
  for (size_t i = 0; i < s.images.size(); ++i) {
    const image_span& image = s.images[i];
    const int64_t length = int64_t{image.grid_h} * (image.grid_w + 1) + 2;
    const int64_t from = std::max(image.start, s.start), to = std::min(image.start + length, end);
    if (from < to)
      step_images_.push_back({first_row + from - s.start, from - image.start, to - from, s.image_handles[i]});
  }
  for (int64_t i = 0; i < n; ++i) {
    host_row r{.id = s.tokens[static_cast<size_t>(i)],
               .slot = s.slot,
               .position = s.start + i,
               .first_row = first_row,
               .table = s.slot,
               .rows = s.start + i < s.n_prompt ? row_class::prefill : row_class::decode};
    r.in_image = std::any_of(s.images.begin(), s.images.end(), [&](const image_span& image) {
      return r.position >= image.start && r.position < image.start + int64_t{image.grid_h} * (image.grid_w + 1) + 2;
    });
    all_columns_->add(r);
    record_rows_.push_back(first_record + i);
    if (r.position < first_late) continue;
    tail_rows_.push_back(static_cast<int32_t>(all_columns_->n() - 1));
    r.first_row = first_tail;
    r.floor = floor;
    tail_columns_->add(r);
  }
  TROUPE_CHECK(s.n_logits >= 0 && s.n_logits <= tail_columns_->n() - first_tail,
               "logits are of rows that all layers ran on");
  return {tail_columns_->n() - s.n_logits, s.n_logits};
}

void model_v41::upload_inputs() {
  all_columns_->upload();
  if (options_.prefill == prefill_mode::tail) {
    tail_columns_->upload();
    be_.upload(tail_index_, tail_rows_.data(), static_cast<int64_t>(tail_rows_.size()) * 4);
  }
  index_.clear();
  for (const wanted_logits& w : wanted_)
    for (int64_t i = 0; i < w.n; ++i) index_.push_back(static_cast<int32_t>(w.first_row + i));
  index_.resize(static_cast<size_t>(tail_columns_->n())); // captured work runs the head on every row
  be_.upload(head_index_, index_.data(), static_cast<int64_t>(index_.size()) * 4);
  if (!buffers_.engram_order) return;
  index_.clear();
  for (int32_t rank = 0; rank < be_.n_ranks(); ++rank)
    for (int32_t r = 0; r < all_columns_->n(); ++r) index_.push_back(r * be_.n_ranks() + rank);
  const tensor order = buffers_.engram_order.slice(0, static_cast<int64_t>(index_.size()));
  be_.upload(order, index_.data(), order.size_bytes());
}

void model_v41::run_step(int64_t n, int64_t n_late, int64_t n_wanted, const mailbox* records) {
  ctx_.rows = all_columns_->view(n, block_tables_);
  ctx_.drafting = false;
  embed_rows();
  ctx_.run_on(ctx_.rows);
  run_layers(n_late, records);
  if (ctx_.rows.n > 0 && (n_wanted > 0 || ctx_.seen)) run_head(n_wanted);
}

void model_v41::embed_rows() {
  const int64_t n = ctx_.rows.n;
  const tensor x = buffers_.x.slice(0, n);
  ends_->embed(x, ctx_.rows.ids);
  be_.set_row_classes(all_prefill); // of the vision tower: an image is part of a prompt
  for (const shown_image& i : step_images_) {
    TROUPE_CHECK(images_, "images are refused without a vision tower");
    const tensor image = images_->rows(i.handle);
    TROUPE_CHECK(i.first_token + i.n <= image.rows(), "an image span has the length of its image");
    be_.copy_rows(x.slice(i.first_row, i.n), {}, image.slice(i.first_token, i.n), {});
  }
  ctx_.layer = -1;
  ctx_.show("embed", x);
  ctx_.h = buffers_.h.slice(0, n);
  ctx_.pre = buffers_.one_hot.slice(0, n);
  ctx_.selected = buffers_.selected.slice(0, n);
  ctx_.candidates = buffers_.candidates.slice(0, n);
  be_.spread(ctx_.h, x);
}

void model_v41::run_layers(int64_t n_late, const mailbox* records) {
  const int32_t late = config_.last_kv_source() + 1; // the first layer that may have fewer rows
  bool has_input = false;
  for (int32_t l = 0; l < config_.layers; ++l) {
    if (l == late) narrow_to_tail(n_late);
    if (ctx_.rows.n == 0) return;
    ctx_.layer = l;
    const block_weights& layer = layers_[static_cast<size_t>(l)];
    if (records != nullptr && layer.role.engram_slot >= 0) {
      be_.receive(record_tensors(ctx_.rows.n), *records); // as late as can be: the first layer that reads any
      records = nullptr;
    }
    const bool is_followed = l + 1 < config_.layers && l + 1 != late;
    has_input = run_block(ctx_, layer, caches_[static_cast<size_t>(l)],
                          {is_followed ? &layers_[static_cast<size_t>(l) + 1] : nullptr, has_input});
  }
  if (late >= config_.layers) narrow_to_tail(n_late);
  if (drafter_ && ctx_.rows.n > 0) note_context();
}

// An observer is shown the rows of each step, whenever they are wanted.
void model_v41::note_context() {
  if (late_context_) late_context_->keep(ctx_);
  if (!late_context_ || ctx_.seen) drafter_->add_context(ctx_, draft_caches());
}

std::span<const layer_cache> model_v41::draft_caches() const {
  return std::span(caches_).subspan(static_cast<size_t>(config_.layers));
}

// The layers above the last kv source run on the tail of a prompt only (model.md section 3); in exact mode that is all
// of it.
void model_v41::narrow_to_tail(int64_t n) {
  if (options_.prefill == prefill_mode::exact) return;
  const row_set before = ctx_.rows;
  ctx_.run_on(tail_columns_->view(n, block_tables_));
  if (n == 0 || n == before.n) return;
  const tensor index = tail_index_.slice(0, n);
  const auto gather = [&](tensor to, tensor from) {
    be_.copy_rows(to.slice(0, n), {}, from, index);
    return to.slice(0, n);
  };
  ctx_.h = gather(buffers_.h_tail, ctx_.h);
  ctx_.pre = gather(buffers_.pre_attention, ctx_.pre); // free between layers
  std::swap(buffers_.pre_attention, buffers_.pre_moe); // so that the next half does not write over it
  ctx_.selected = gather(buffers_.selected_tail, ctx_.selected);
  ctx_.candidates = gather(buffers_.candidates_tail, ctx_.candidates);
  if (!buffers_.taps) return;
  gather(buffers_.taps_tail, buffers_.taps);
  std::swap(buffers_.taps, buffers_.taps_tail);
}

// Of a single piece of logits the head runs here; of more, read_logits runs and fetches one after another. Its rows are
// of the decode class, the last one of a prompt too.
void model_v41::run_head(int64_t n_wanted) {
  be_.set_row_classes({});
  const tensor x = buffers_.x.slice(0, ctx_.rows.n);
  be_.fold(x, ctx_.h, ctx_.pre);
  ctx_.layer = -1;
  ctx_.show("final_fold", x);
  if (n_wanted == 0) return;
  const tensor input = head_input_.slice(0, n_wanted);
  be_.copy_rows(input, {}, x, head_index_.slice(0, n_wanted));
  be_.rms_norm(input, input, final_norm_, config_.eps);
  if (n_wanted <= ends_->piece()) ends_->project(ends_->head(), input);
}

std::span<const float> model_v41::read_logits(int64_t n_wanted) {
  if (n_wanted == 0) return {};
  const auto size = static_cast<size_t>(n_wanted * config_.vocabulary);
  if (logits_.size() < size) logits_.resize(size);
  const auto out = std::span(logits_).first(size);
  if (n_wanted <= ends_->piece())
    ends_->fetch(ends_->head(), n_wanted, out);
  else
    ends_->logits(ends_->head(), head_input_.slice(0, n_wanted), out);
  return out;
}

int32_t model_v41::take_image(planned_image image) {
  require_vision();
  return images_->add(std::move(image));
}

int32_t model_v41::take_patches(std::span<const float> patches, int64_t patch_rows, int64_t patch_columns) {
  require_vision();
  return images_->add_patches({patches.begin(), patches.end()}, patch_rows, patch_columns);
}

void model_v41::require_vision() const {
  if (!images_) throw std::runtime_error("this model was loaded without a vision tower, found an image");
}

void model_v41::drop_image(int32_t handle) { images_->drop(handle); }

model_info info_of(const config& c, const std::string& folder) {
  model_info info;
  info.family = "deepseek_v41";
  std::filesystem::path path(folder);
  info.name = (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
  info.context = c.context;
  info.vocabulary = c.vocabulary;
  info.bos = c.bos_id;
  info.eos = c.eos_id;
  info.pad = c.pad_id;
  info.image_token = c.image_id;
  info.has_vision = c.vision.layers > 0;
  info.has_draft = c.draft.stages > 0;
  info.draft_block = c.draft.block;
  return info;
}

} // namespace troupe::deepseek_v41
