// Attention over window rows, compressed rows and a sink, and what fills their caches.  Spec: model.md 2.2 - 2.4, 2.8.
#pragma once

#include "gpu/backend.h"

#include <vector>

namespace troupe {

// The keys (= values) that a row sees, in the order they are added: views of the caches and of step_kv, or of `decoded`
// where a cache holds records.
struct visible_keys {
  std::vector<const float*> rows;
  std::vector<float> decoded;
};
void visible_rows(const attention_args&, const step_rows&, int64_t r, visible_keys&);

// See attention_args. f32, caches also records | dim <= 1024 | a row with no visible key gives zeros | scratch: one
// score per visible row, thread local and reused. Values are added in ascending order of rows, fused, so a row's bits
// are its own.
void attention_host(const attention_args&, const step_rows&);

// c (R, d): at odd positions p the softmax-gated mean of the pair (p - 1, p) per channel, not yet normed; other rows
// are left as they are. The even half comes from the row before, or from pending when the step starts at the odd one.
// u, g (R, d) f32 | pending (n_slots, pairs, 2, d) f32: u and g of the last `pairs` even positions, position p at
// [slot][p / 2 % pairs], so that up to 2 * pairs - 2 rejected rows can be taken back.
void compress_pairs_host(tensor c, tensor u, tensor g, tensor pending, const step_rows&);
// The same with another form of the arithmetic: c (d) from the two rows of a pair.
using compress_pair_form = void (*)(float* c, const float* u0, const float* g0, const float* u1, const float* g1,
                                    int64_t dim);
void compress_pairs_by(compress_pair_form, tensor c, tensor u, tensor g, tensor pending, const step_rows&);

// x (R, dim) f32 -> cache (n_blocks, entries, dim) or records of `how`, entry entries[i] (i32, -1: none) of row i's
// sequence.
void scatter_entries_host(tensor cache, tensor x, tensor entries, quantiser how, const step_rows&);

// x (R, dim) f32 -> rings (n_slots, ring, dim) or records of fp8_32 at [slot][position % ring]; of each sequence the
// last `ring` rows land.
void write_rings_host(tensor rings, tensor x, const step_rows&);

// x (R, heads, d) or (R, d): the last 2 * n_frequencies elements as adjacent pairs, turned by position * frequency
// (f32 product, full-range sine and cosine) | positions (R) i64, frequencies (n) f32. Negative positions do nothing.
// Precondition: no operation directly before it writes `positions` in the same captured work; a device reads them
// early.
void rope_host(tensor x, tensor positions, tensor frequencies, bool inverse);

} // namespace troupe
