// Cuts each operation into rows or heads, and small ones not at all.
#include "gpu/fast_ops.h"

#include "gpu/attention.h"
#include "gpu/split_linear.h"
#include "gpu/topk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe {
namespace {

// Elements below which waking a thread costs more than it saves, a few microseconds of one core.
constexpr int64_t least_elements = 32 * 1024;

// work(first, n) over all rows: on the calling thread when `elements` (of all rows together) is small.
template <class Work> void split_rows(fast_context& c, int64_t n_rows, int64_t elements, Work work) {
  if (n_rows == 0) return;
  const int64_t n_threads = c.threads.size();
  if (n_threads == 1 || elements < least_elements) return work(0, n_rows);
  const int64_t n_chunks = std::min<int64_t>(n_rows, 4 * n_threads);
  c.threads.for_each(n_chunks, [&](int64_t i) {
    const int64_t first = n_rows * i / n_chunks;
    work(first, n_rows * (i + 1) / n_chunks - first);
  });
}

} // namespace

const rope_memo::row& rope_memo::at(int64_t position, const float* frequencies, int64_t n) {
  constexpr uint64_t n_places = 1024;
  if (rows_.empty()) rows_.resize(n_places);
  const uint64_t tag = n > 1 ? std::bit_cast<uint32_t>(frequencies[1]) : 0;
  row& r = rows_[(static_cast<uint64_t>(position) + tag * 0x9E3779B97F4A7C15ULL / 8) % n_places];
  const bool same = r.position == position && r.frequencies.size() == static_cast<size_t>(n) &&
                    std::memcmp(r.frequencies.data(), frequencies, static_cast<size_t>(n) * sizeof(float)) == 0;
  if (same) return r;
  r.position = position;
  r.frequencies.assign(frequencies, frequencies + n);
  r.cosine.resize(static_cast<size_t>(2 * n));
  r.sine.resize(static_cast<size_t>(2 * n));
  for (size_t p = 0; p < static_cast<size_t>(n); ++p) {
    const float angle = static_cast<float>(position) * frequencies[p];
    r.cosine[2 * p] = r.cosine[2 * p + 1] = std::cos(angle);
    r.sine[2 * p + 1] = std::sin(angle);
    r.sine[2 * p] = -r.sine[2 * p + 1];
  }
  return r;
}

void rms_norm_fast(fast_context& c, tensor y, tensor x, tensor weight, float eps) {
  const int64_t dim = weight.n_elements(), n_rows = dim == 0 ? 0 : x.n_elements() / dim;
  TROUPE_CHECK(y.n_elements() == x.n_elements() && x.n_elements() == n_rows * dim,
               "a norm keeps the shape of its rows");
  split_rows(c, n_rows, x.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r)
      c.rows.rms_norm(y.f32() + r * dim, x.f32() + r * dim, weight.f32(), dim, eps);
  });
}

void rope_fast(fast_context& c, tensor x, tensor positions, tensor frequencies, bool inverse) {
  const int64_t n_rows = x.rows(), n = frequencies.n_elements();
  if (n_rows == 0) return;
  const int64_t dim = x.shape[x.rank - 1], heads = x.row_elements() / dim;
  TROUPE_CHECK(2 * n <= dim, "the rope part fits into a head");
  c.scratch.resize(static_cast<size_t>(4 * n * n_rows)); // cosine and sine of every row, because the memo may move on
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t t = positions.i64()[r];
    if (t < 0) continue;
    const auto& row = c.rope.at(t, frequencies.f32(), n);
    float* to = c.scratch.data() + r * 4 * n;
    std::copy(row.cosine.begin(), row.cosine.end(), to);
    std::copy(row.sine.begin(), row.sine.end(), to + 2 * n);
    if (inverse)
      for (int64_t i = 2 * n; i < 4 * n; ++i) to[i] = -to[i];
  }
  split_rows(c, n_rows, n_rows * heads * 2 * n, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      if (positions.i64()[r] < 0) continue;
      const float* cosine = c.scratch.data() + r * 4 * n;
      c.heads.rotate(x.f32() + r * heads * dim, cosine, cosine + 2 * n, 2 * n, heads, dim);
    }
  });
}

void quantise_fast(fast_context& c, tensor x, quantiser how) {
  const int64_t width = x.rank == 0 ? 0 : x.shape[x.rank - 1];
  TROUPE_CHECK(width % (how == quantiser::fp4_e4m3_16 ? 16 : 32) == 0,
               "the last dimension is a whole number of quantiser groups");
  const int64_t n_rows = width == 0 ? 0 : x.n_elements() / width;
  split_rows(c, n_rows, x.n_elements(),
             [&](int64_t first, int64_t n) { c.rows.quantise(x.f32() + first * width, n * width, how); });
}

void mix_fast(fast_context& c, const mix_args& a) {
  const int64_t n_rows = a.h.rows();
  if (n_rows == 0) return;
  const int64_t m = a.h.shape[1], width = a.h.row_elements();
  TROUPE_CHECK(m <= 8 && a.fn->out == (2 + m) * m && a.fn->in == width, "mix has (2 + M) M outputs over M D");
  c.scratch.resize(static_cast<size_t>(n_rows * a.fn->out));
  linear_fast(c.level, c.threads, tensor(c.scratch.data(), dtype::f32, {n_rows, a.fn->out}), a.h, *a.fn);
  // A chunk of fewer rows than lanes costs as much as a full one, so chunks are sixteen rows.
  const int64_t n_chunks = (n_rows + 15) / 16;
  split_rows(c, n_chunks, n_rows * width, [&](int64_t first, int64_t n) {
    const int64_t row = first * 16, end = std::min((first + n) * 16, n_rows);
    c.rows.mix_rows(a, c.scratch.data(), row, end - row);
  });
}

void fold_fast(fast_context& c, tensor x, tensor h, tensor pre) {
  const int64_t n_rows = h.rows(), m = h.shape[1], dim = h.shape[2];
  split_rows(c, n_rows, h.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r)
      c.rows.fold(x.f32() + r * dim, h.f32() + r * m * dim, pre.f32() + r * m, m, dim);
  });
}

void expand_fast(fast_context& c, tensor h, tensor y, tensor post, tensor comb) {
  const int64_t n_rows = h.rows(), m = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(m <= 8, "at most eight residual copies");
  split_rows(c, n_rows, h.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r)
      c.rows.expand(h.f32() + r * m * dim, y.f32() + r * dim, post.f32() + r * m, comb.f32() + r * m * m, m, dim);
  });
}

void mean_copies_fast(fast_context& c, tensor y, tensor h) {
  const int64_t n_rows = h.rows(), m = h.shape[1], dim = h.shape[2];
  split_rows(c, n_rows, h.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) c.rows.mean_copies(y.f32() + r * dim, h.f32() + r * m * dim, m, dim);
  });
}

void attention_fast(fast_context& c, const attention_args& a, const step_rows& rows) {
  const int64_t n_rows = a.q.rows(), heads = a.q.shape[1], dim = a.q.shape[2];
  const int64_t per_item = n_rows >= 4 * c.threads.size() ? heads : std::max<int64_t>(1, heads / c.threads.size());
  const int64_t by_heads = (heads + per_item - 1) / per_item;
  const auto attend = [&](int64_t item) {
    thread_local visible_keys seen;
    thread_local std::vector<float> score;
    const int64_t r = item / by_heads, first = item % by_heads * per_item;
    visible_rows(a, rows, r, seen);
    const std::vector<const float*>& keys = seen.rows;
    const auto n = static_cast<int64_t>(keys.size());
    const int64_t some = std::min(per_item, heads - first), at = (r * heads + first) * dim;
    score.resize(keys.size() * static_cast<size_t>(some));
    if (n == 0)
      std::fill_n(a.o.f32() + at, some * dim, 0.0F);
    else
      c.heads.attend(a.o.f32() + at, a.q.f32() + at, keys.data(), nullptr, n, some, dim, a.scale, a.sink.f32() + first,
                     score.data());
  };
  c.threads.for_each(n_rows * by_heads, attend);
}

void select_entries_fast(fast_context& c, const index_args& a, const step_rows& rows) {
  constexpr int64_t item_keys = 128; // what is decoded, or shared, at a time
  const auto part = [&](float* score, const float* q, const float* weight, int64_t heads, int64_t dim, stored_keys keys,
                        int64_t n, int64_t item) {
    const int64_t first = item * item_keys, some = std::min(item_keys, n - first);
    c.heads.index_scores(score + first, q, weight, heads, dim, as_floats(keys.from(first), some, dim), some);
  };
  const index_scores_form whole = [&](float* score, const float* q, const float* weight, int64_t heads, int64_t dim,
                                      stored_keys keys, int64_t n) {
    for (int64_t i = 0; i * item_keys < n; ++i) part(score, q, weight, heads, dim, keys, n, i);
  };
  if (a.q.rows() >= 2 * c.threads.size())
    return c.threads.for_each(a.q.rows(), [&](int64_t r) { select_row(whole, a, rows, r); });
  // Few rows: the keys of a row are shared instead.
  const index_scores_form shared = [&](float* score, const float* q, const float* weight, int64_t heads, int64_t dim,
                                       stored_keys keys, int64_t n) {
    c.threads.for_each((n + item_keys - 1) / item_keys,
                       [&](int64_t i) { part(score, q, weight, heads, dim, keys, n, i); });
  };
  for (int64_t r = 0; r < a.q.rows(); ++r) select_row(shared, a, rows, r);
}

void route_fast(fast_context& c, tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl,
                tensor vl, float scale) {
  const int64_t n_rows = ids.shape[0], k = ids.shape[1], n_experts = gate.out;
  TROUPE_CHECK(k <= n_experts, "no more experts are chosen than there are");
  if (n_rows == 0) return;
  c.scratch.resize(static_cast<size_t>(n_rows * n_experts));
  linear_fast(c.level, c.threads, tensor(c.scratch.data(), dtype::f32, {n_rows, n_experts}), x, gate);
  for (int64_t r = 0; r < n_rows; ++r) {
    const bool image = vl && bias_vl && vl.i32()[r] != 0;
    route_row(ids.i32() + r * k, weights.f32() + r * k, c.scratch.data() + r * n_experts,
              image ? bias_vl.f32() : bias.f32(), n_experts, k, scale);
  }
}

void engram_gate_fast(fast_context& c, tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
                      float eps) {
  const int64_t n_rows = h.rows(), m = h.shape[1], dim = h.shape[2];
  split_rows(c, n_rows, h.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      float* out = gates ? gates.f32() + r * m : nullptr;
      if (!dead || dead.i32()[r] == 0)
        c.rows.engram_gate(h.f32() + r * m * dim, kv.f32() + r * (m + 1) * dim, q_weight.f32(), k_weight.f32(), out, m,
                           dim, eps);
      else if (out != nullptr)
        std::fill_n(out, m, 0.0F);
    }
  });
}

void attention_full_fast(fast_context& c, tensor o, tensor q, tensor k, tensor v, float scale) {
  const int64_t n = q.rows(), heads = q.shape[1], dim = q.shape[2];
  if (n == 0) return;
  c.threads.for_each(n * heads, [&](int64_t item) {
    thread_local std::vector<const float*> keys, values;
    thread_local std::vector<float> score;
    const int64_t h = item / n, r = item % n;
    keys.resize(static_cast<size_t>(n));
    values.resize(keys.size());
    score.resize(keys.size());
    for (int64_t i = 0; i < n; ++i) {
      keys[static_cast<size_t>(i)] = k.f32() + (i * heads + h) * dim;
      values[static_cast<size_t>(i)] = v.f32() + (i * heads + h) * dim;
    }
    c.heads.attend(o.f32() + (r * heads + h) * dim, q.f32() + (r * heads + h) * dim, keys.data(), values.data(), n, 1,
                   dim, scale, nullptr, score.data());
  });
}

void silu_mul_fast(fast_context& c, tensor y, tensor gate_up) {
  const int64_t n_rows = y.rows(), width = n_rows == 0 ? 0 : y.row_elements();
  split_rows(c, n_rows, y.n_elements(), [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const float* g = gate_up.f32() + r * 2 * width;
      c.rows.silu_mul(y.f32() + r * width, g, g + width, width);
    }
  });
}

} // namespace troupe
