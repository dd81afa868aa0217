// Test doubles of the actors' tests: a model that says what it is told, tables that can fail, a sink that remembers.
#pragma once

#include "actors/messages.h"
#include "model/deepseek_v41/chat.h"
#include "model/deepseek_v41/output_parser.h"
#include "model/model.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace troupe {

// What a scripted model says and what it was asked.
struct script {
  std::vector<int32_t> answer; // ids after any prompt, then the end token
  int64_t nan_at = -1;         // logits of this generated token are NaN
  bool throws = false;
  int32_t fatal_token = -1; // a row of this token breaks the rank
  int32_t draft_block = 0;  // 0: no drafter
  int32_t wrong_every = 0;  // every so many generated tokens the draft is wrong; 0: never
  struct row {
    int32_t slot = 0;
    int64_t start = 0, n_tokens = 0, n_images = 0;
    bool samples = false;
    int32_t n_logits = 0;
  };
  std::vector<std::vector<row>> steps; // one entry a forward
  std::vector<int64_t> image_bytes;
  int32_t n_dropped = 0;
};

class scripted_model : public model {
public:
  scripted_model(std::shared_ptr<script> s, int32_t vocabulary) : script_(std::move(s)) {
    info_.vocabulary = vocabulary;
    info_.block_tokens = 8;
    info_.draft_block = script_->draft_block;
  }
  const model_info& info() const override { return info_; }
  std::span<const float> forward(std::span<const sequence_rows> rows, record_source& records) override {
    if (script_->throws) throw std::runtime_error("scripted failure");
    logits_.clear();
    auto& step = script_->steps.emplace_back();
    ++n_forwards_;
    int64_t n_rows = 0;
    for (const auto& r : rows) {
      const auto n = static_cast<int64_t>(r.tokens.size());
      for (const auto id : r.tokens)
        if (id == script_->fatal_token) throw std::runtime_error("scripted failure of a row");
      n_rows += n;
      step.push_back({r.slot, r.start, n, static_cast<int64_t>(r.images.size()), r.n_logits > 0, r.n_logits});
      if (static_cast<int64_t>(r.blocks.size()) * info_.block_tokens < r.start + n)
        throw std::runtime_error("the block table does not cover the rows");
      follow(r);
      for (int32_t i = r.n_logits; i-- > 0;) {
        const int64_t at = r.start + n - i - n_prompt_.at(r.slot); // generated before this one
        logits_.resize(logits_.size() + static_cast<size_t>(info_.vocabulary), 0.0F);
        auto* row = logits_.data() + logits_.size() - info_.vocabulary;
        row[answer_at(at)] = 10;
        if (at == script_->nan_at) row[3] = NAN;
      }
    }
    const auto found = records.take();
    if (found && static_cast<int64_t>(found->size()) != n_rows) throw std::runtime_error("records and rows differ");
    return logits_;
  }
  step_counts counts() const override { return {n_forwards_, 0}; } // as if each were a replay; a new model begins anew
  bool can_draft() const override { return info_.draft_block > 0; }
  draft_tokens draft_next(std::span<const draft_request> requests) override {
    draft_tokens out;
    for (const auto& r : requests)
      for (int32_t j = 0; j < info_.draft_block; ++j) {
        const int64_t at = r.position + 1 + j - n_prompt_.at(r.slot);
        const bool is_wrong = script_->wrong_every > 0 && at % script_->wrong_every == script_->wrong_every - 1;
        out.ids.push_back(is_wrong ? 7 : answer_at(at));
        out.confidence.push_back(is_wrong ? 0.1F : 0.9F);
      }
    return out;
  }
  int32_t take_image(planned_image image) override {
    script_->image_bytes.push_back(static_cast<int64_t>(image.rgb.size()));
    return static_cast<int32_t>(script_->image_bytes.size());
  }
  void drop_image(int32_t) override { ++script_->n_dropped; }

protected:
  std::map<int32_t, std::vector<int32_t>> tokens_; // that a slot was fed

private:
  void follow(const sequence_rows& r) {
    auto& tokens = tokens_[r.slot];
    tokens.resize(static_cast<size_t>(r.start));
    tokens.insert(tokens.end(), r.tokens.begin(), r.tokens.end());
    n_prompt_[r.slot] = r.n_prompt;
  }
  int32_t answer_at(int64_t at) const {
    if (at < 0) throw std::logic_error("the scripted answer is asked for before the prompt ends");
    return at < static_cast<int64_t>(script_->answer.size()) ? script_->answer[static_cast<size_t>(at)] : 1;
  }
  std::shared_ptr<script> script_;
  std::map<int32_t, int64_t> n_prompt_; // of a slot's sequence
  model_info info_;
  std::vector<float> logits_;
  int64_t n_forwards_ = 0;
};

struct table_script {
  int64_t n_rows = 0;
  int32_t n_failures = 0;    // this many reads fail
  int32_t broken_token = -1; // and every read of this token's row
};

// One byte a token.
class scripted_tables : public table_reader {
public:
  explicit scripted_tables(std::shared_ptr<table_script> s) : script_(std::move(s)) {}
  int64_t record_bytes_per_token() const override { return 1; }
  void read(std::span<const sequence_rows> rows, std::span<std::byte> records) override {
    if (script_->n_failures > 0) {
      --script_->n_failures;
      throw std::system_error(std::make_error_code(std::errc::io_error), "rows.bin: row 7");
    }
    for (const auto& r : rows)
      for (const auto id : r.tokens)
        if (id == script_->broken_token)
          throw std::system_error(std::make_error_code(std::errc::io_error), "rows.bin: row 9");
    script_->n_rows += static_cast<int64_t>(records.size());
  }

private:
  std::shared_ptr<table_script> script_;
};

// The tiny model's tokenizer with the real renderer and parser; no images.
class tiny_text_side : public text_side {
public:
  explicit tiny_text_side(const std::string& tokenizer_path)
      : words_(tokenizer::load(tokenizer_path)), markers_(find_markers(*words_)) {}
  const std::shared_ptr<const tokenizer>& words() const override { return words_; }
  rendered_prompt render(const chat_input& in) const override { return render_chat(in); }
  std::unique_ptr<output_parser> make_parser(const parser_options& o) const override {
    return std::make_unique<output_parser>(words_, markers_, o);
  }
  std::span<const int32_t> suppressed_ids() const override { return markers_.suppressed; }
  int32_t think_end_id() const override { return markers_.think_end; }
  planned_image plan_image(std::span<const std::byte> file) const override {
    planned_image p; // a "file" of n bytes is an image of n * 14 x 14 pixels and n tokens a row
    p.width = static_cast<int32_t>(file.size()) * 14;
    p.height = 14;
    p.grid_h = 1;
    p.grid_w = static_cast<int32_t>(file.size());
    p.hash = file.size();
    p.rgb.resize(static_cast<size_t>(p.width) * 14 * 3);
    return p;
  }

private:
  std::shared_ptr<const tokenizer> words_;
  marker_ids markers_;
};

inline std::shared_ptr<const text_side> tiny_text() {
  static const auto text = std::make_shared<tiny_text_side>(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  return text;
}

class recording_sink : public turn_sink {
public:
  struct choice {
    std::string reasoning, content, calls; // calls: name(arguments)...
    std::vector<int32_t> ids;
    int n_ends = 0;
    finish_cause cause = finish_cause::stop;
    std::string stop_string;
    int32_t stop_token = -1;
  };
  void open(std::span<const int32_t> ids) override {
    ++n_opens;
    prompt_ids.assign(ids.begin(), ids.end());
  }
  state push(std::span<const turn_delta> deltas) override {
    ++n_pushes;
    for (const auto& d : deltas) {
      if (static_cast<size_t>(d.choice) >= choices.size()) choices.resize(static_cast<size_t>(d.choice) + 1);
      auto& c = choices[static_cast<size_t>(d.choice)];
      for (const auto& t : d.tokens) c.ids.push_back(t.id);
      usage = d.usage;
      switch (d.what) {
      case turn_delta::kind::reasoning: c.reasoning += d.text; break;
      case turn_delta::kind::content: c.content += d.text; break;
      case turn_delta::kind::call: c.calls += std::string(d.text) + ":"; break;
      case turn_delta::kind::arguments: c.calls += d.text; break;
      case turn_delta::kind::end:
        ++c.n_ends;
        c.cause = d.cause;
        c.stop_string = d.stop_string;
        c.stop_token = d.stop_token;
      }
    }
    return next_state;
  }
  void fail(const api_error& e) override {
    ++n_failures;
    error = e;
  }
  void note(std::string_view text) override { notes.emplace_back(text); }
  bool has_ended() const {
    return n_failures > 0 || (!choices.empty() && std::all_of(choices.begin(), choices.end(),
                                                              [](const choice& c) { return c.n_ends == 1; }));
  }

  std::vector<choice> choices;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> notes;
  turn_usage usage;
  api_error error;
  state next_state = state::ok;
  int n_opens = 0, n_pushes = 0, n_failures = 0;
};

inline std::shared_ptr<recording_sink> sink() { return std::make_shared<recording_sink>(); }

} // namespace troupe
