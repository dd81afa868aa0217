// From logits to tokens: masks and edits, temperature, min_p, top_k, top_p, a keyed draw, log-probabilities of the raw
// logits. sample_rows_host is the truth for the device form.
//
// On the device the same token for equal logits, with one exception. The twin adds weights exp((logit - best) / T) in
// f64; here each is a multiple of 2^-s (s = 62 - log2 of the vocabulary, rounded up: 45 for 129280) and sums are exact
// integers, so that a row has the same token in every run whatever the order. Where the random number, or top_p, falls
// within vocabulary * 2^-s (4e-9) of the mass at which one token ends and the next begins, the neighbour may be taken.
// Spec: api.md 2.1.
#pragma once

#include "gpu/tensor.h"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

struct cuda_lane;

// The rules of one row.
struct sample_row {
  // max(-50, log(min_p)): what weighs less than the best one by more is dropped. All of a vocabulary of millions below
  // e^-50 together stay under 2^-53 of the mass, the step of the random number.
  double least_log_weight = -50;
  uint64_t seed = 0;
  int64_t position = 0; // that the token will have
  int32_t choice = 0;
  float temperature = 1; // 0: the largest, else at least 0.01
  float top_p = 1;
  int32_t top_k = 0; // 0: off
  float frequency_penalty = 0, presence_penalty = 0, repetition_penalty = 1;
  int32_t first_edit = 0, n_edits = 0;
  int32_t mask = -1; // row of `masks`; -1: every id is allowed
};

// What changes one logit of a row, in this order: ban or mask, bias, repetition, frequency and presence. At most one an
// id and row.
struct logit_edit {
  enum : uint32_t {
    ban = 1,
    lift = 2,     // the mask does not hold for this id
    repeated = 4, // in the prompt or generated: the repetition penalty
    generated = 8 // the other two
  };
  int32_t id = 0; // outside the vocabulary: no effect
  uint32_t what = 0;
  float bias = 0; // -100 .. 100
  int32_t count = 0;
  float raw = 0, value = 0; // written by the kernels
};

// Instead of an id: NaN or +infinity among the raw logits; every id masked.
enum : int32_t { sample_unsound = -1, sample_all_masked = -2 };

struct sample_args {                // device memory, or host memory for the twin
  tensor ids;                       // out (R) i32
  tensor logprobs;                  // out (R) f32 of the ids, or empty
  tensor best_ids, best_logprobs;   // out (R, n) i32, f32: the n best of the raw logits, best first; or both empty
  tensor logits;                    // (R, vocabulary) f32, changed by masks and edits
  const sample_row* rows = nullptr; // (R)
  logit_edit* edits = nullptr;
  const uint32_t* masks = nullptr; // (n, vocabulary / 32 rounded up): bit id % 32 set: allowed
};

// As the operations of cuda_ops.h: no allocation, no synchronisation, capturable.
void sample_cuda(const sample_args&, const cuda_lane&);
// Leaves the logits of an unsound row as they were.
void sample_rows_host(const sample_args&);

// What one call draws, in host memory: the rules of its rows, and what they refer to.
struct sample_batch {
  explicit sample_batch(int64_t vocabulary_size) : vocabulary(vocabulary_size) {}
  void clear() { rows.clear(), edits.clear(), masks.clear(), suppressed_mask = -1, n_best = 0, wants_logprobs = false; }
  int64_t mask_words() const { return (vocabulary + 31) / 32; }
  // A new mask that allows everything (or nothing); returns its number.
  int32_t add_mask(bool allows) {
    masks.resize(masks.size() + static_cast<size_t>(mask_words()), allows ? ~0U : 0U);
    return static_cast<int32_t>(static_cast<int64_t>(masks.size()) / mask_words()) - 1;
  }
  void set_allowed(int32_t mask, int32_t id, bool allowed) { // ids outside the vocabulary: no effect
    if (id < 0 || id >= vocabulary) return;
    uint32_t& word = masks[static_cast<size_t>(mask * mask_words() + id / 32)];
    word = allowed ? word | 1U << (id % 32) : word & ~(1U << (id % 32));
  }
  int64_t vocabulary;
  std::vector<sample_row> rows;
  std::vector<logit_edit> edits;
  std::vector<uint32_t> masks;
  int32_t suppressed_mask = -1; // the mask of ids that all rows share, once one needed it
  int32_t n_best = 0;           // best logits wanted of a row, the most of all rows
  bool wants_logprobs = false;
};

struct sampled_rows {
  std::vector<int32_t> ids;         // (R), or sample_unsound, sample_all_masked
  std::vector<float> logprobs;      // (R), where wanted
  int32_t n_best = 0;               // of the two below
  std::vector<int32_t> best_ids;    // (R, n_best)
  std::vector<float> best_logprobs; // (R, n_best)
};

// The twin on rows in host memory: logits (batch.rows.size(), vocabulary), changed by it.
void sample_in_memory(std::span<float> logits, const sample_batch&, sampled_rows&);

// Draws where the logits are, with room for what a step may bring.
class row_sampler {
public:
  virtual ~row_sampler() = default;
  virtual bool has_room(const sample_batch&) const = 0;
  // logits (R, vocabulary) of this sampler's backend, changed by it. Returns the ids (R) i32 where they will be drawn,
  // for work behind it; begin does not wait, end waits for the result alone. Precondition: has_room().
  virtual tensor begin(tensor logits, const sample_batch&) = 0;
  virtual void end(sampled_rows&) = 0;
  void sample(tensor logits, const sample_batch& batch, sampled_rows& out) { begin(logits, batch), end(out); }
};

} // namespace troupe
