// From logits to tokens on the device: masks and edits, temperature, min_p, top_k, top_p, a keyed draw,
// log-probabilities of the raw logits. The twin is sampler_state::sample (model/sampling.h), whose chain and order of
// ties this keeps.
//
// The same token as the twin's for equal logits, with one exception. The twin adds weights exp((logit - best) / T) in
// f64; here each is a multiple of 2^-s (s = 62 - log2 of the vocabulary, rounded up: 45 for 129280) and sums are exact
// integers, so that a row has the same token in every run whatever the order. Where the random number, or top_p, falls
// within vocabulary * 2^-s (4e-9) of the mass at which one token ends and the next begins, the neighbour may be taken.
// Spec: api.md 2.1.
#pragma once

#include "gpu/cuda_lane.h"
#include "gpu/tensor.h"

#include <cstdint>

namespace troupe {

// The rules of one row, in device memory.
struct sample_row {
  double least_log_weight = -50; // max(-50, log(min_p)): what weighs less than the best one by more is dropped
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

enum : int32_t { sample_unsound = -1, sample_all_masked = -2 }; // instead of an id: NaN or +infinity; nothing to draw

struct sample_args {
  tensor ids;                       // out (R) i32
  tensor logprobs;                  // out (R) f32 of the ids, or empty
  tensor best_ids, best_logprobs;   // out (R, n) i32, f32: the n best of the raw logits, best first; or both empty
  tensor logits;                    // (R, vocabulary) f32, changed by masks and edits
  const sample_row* rows = nullptr; // (R) on the device
  logit_edit* edits = nullptr;      // on the device
  const uint32_t* masks = nullptr;  // (n, vocabulary / 32 rounded up) on the device: bit id % 32 set: allowed
};

// As the operations of cuda_ops.h: no allocation, no synchronisation, capturable.
void sample_cuda(const sample_args&, const cuda_lane&);

} // namespace troupe
