// The sampler of a CUDA backend: rules go up in one copy, tokens come down in one.
#include "gpu/row_sampler.h"

#include "gpu/cuda_backend.h"

#include <algorithm>
#include <cstring>

namespace troupe {
namespace {

constexpr int64_t edit_room_bytes = 4 << 20; // 170,000 edits: repetition penalties of long prompts
constexpr int64_t most_best = 32;            // best logits of a row: more than any request may ask for

int64_t aligned(int64_t n_bytes) { return (n_bytes + 15) / 16 * 16; }

// Rules, edits and masks one behind the other.
struct rule_layout {
  int64_t edits, masks, end;
  explicit rule_layout(const sample_batch& b)
      : edits(aligned(static_cast<int64_t>(b.rows.size() * sizeof(sample_row)))),
        masks(edits + aligned(static_cast<int64_t>(b.edits.size() * sizeof(logit_edit)))),
        end(masks + static_cast<int64_t>(b.masks.size()) * 4) {}
};

class cuda_row_sampler final : public row_sampler {
public:
  cuda_row_sampler(backend& device, int64_t vocabulary, int64_t max_rows)
      : device_(device), vocabulary_(vocabulary), max_rows_(max_rows) {
    const int64_t row_bytes = static_cast<int64_t>(sizeof(sample_row)) + (vocabulary + 31) / 32 * 4;
    rules_ = device.allocate(dtype::u8, {max_rows * row_bytes + edit_room_bytes}, "sampling rules");
    drawn_ = device.allocate(dtype::f32, {max_rows * (2 + 2 * most_best)}, "sampled tokens");
  }

  bool has_room(const sample_batch& b) const override {
    return static_cast<int64_t>(b.rows.size()) <= max_rows_ && rule_layout(b).end <= rules_.size_bytes() &&
           b.n_best <= most_best;
  }

  tensor begin(tensor logits, const sample_batch& b) override {
    n_ = static_cast<int64_t>(b.rows.size());
    with_logprobs_ = b.wants_logprobs;
    n_best_ = with_logprobs_ ? std::max<int64_t>(b.n_best, 0) : 0;
    n_words_ = 0;
    if (n_ == 0) return tensor(drawn_.data, dtype::i32, {0});
    TROUPE_CHECK(has_room(b) && b.vocabulary == vocabulary_, "a sampler has room for its rules");
    upload(b);
    const rule_layout at(b);
    sample_args a;
    a.logits = logits;
    a.rows = reinterpret_cast<const sample_row*>(rules_.data);
    a.edits = reinterpret_cast<logit_edit*>(rules_.data + at.edits);
    a.masks = reinterpret_cast<const uint32_t*>(rules_.data + at.masks);
    float* next = drawn_.f32();
    a.ids = tensor(next, dtype::i32, {n_});
    next += n_;
    if (with_logprobs_) a.logprobs = tensor(next, dtype::f32, {n_}), next += n_;
    if (n_best_ > 0) {
      a.best_ids = tensor(next, dtype::i32, {n_, n_best_}), next += n_ * n_best_;
      a.best_logprobs = tensor(next, dtype::f32, {n_, n_best_}), next += n_ * n_best_;
    }
    sample_cuda(a, lane_of(device_));
    n_words_ = next - drawn_.f32();
    begin_download(device_, drawn_, n_words_ * 4);
    return a.ids;
  }

  void end(sampled_rows& out) override {
    words_.resize(static_cast<size_t>(n_words_));
    if (n_words_ > 0) end_download(device_, words_.data(), n_words_ * 4);
    const float* next = words_.data();
    const auto take = [&](auto& v, int64_t count) {
      v.resize(static_cast<size_t>(count));
      if (count > 0) std::memcpy(v.data(), next, v.size() * 4);
      next += count;
    };
    take(out.ids, n_);
    take(out.logprobs, with_logprobs_ ? n_ : 0);
    out.n_best = static_cast<int32_t>(n_best_);
    take(out.best_ids, n_ * n_best_);
    take(out.best_logprobs, n_ * n_best_);
  }

private:
  void upload(const sample_batch& b) {
    const rule_layout at(b);
    staged_.resize(static_cast<size_t>(at.end));
    const auto put = [&](int64_t to, const auto& v) {
      if (!v.empty()) std::memcpy(staged_.data() + to, v.data(), v.size() * sizeof v[0]);
    };
    put(0, b.rows);
    put(at.edits, b.edits);
    put(at.masks, b.masks);
    device_.upload(rules_, staged_.data(), at.end);
  }

  backend& device_;
  int64_t vocabulary_, max_rows_;
  tensor rules_, drawn_; // device: laid out by rule_layout; ids, logprobs, best ids, best logprobs
  std::vector<std::byte> staged_;
  std::vector<float> words_;
  int64_t n_ = 0, n_best_ = 0, n_words_ = 0; // of what was begun
  bool with_logprobs_ = false;
};

} // namespace

std::unique_ptr<row_sampler> make_cuda_sampler(backend& device, int64_t vocabulary, int64_t max_rows) {
  return std::make_unique<cuda_row_sampler>(device, vocabulary, max_rows);
}

} // namespace troupe
