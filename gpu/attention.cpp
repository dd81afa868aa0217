// Attention and its caches, the plain twins.
#include "gpu/attention.h"

#include "gpu/cache_rows.h"
#include "gpu/dot.h"
#include "gpu/exp.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe {
namespace {

constexpr int64_t max_dim = 1024;

// Row `at` of a cache, rows counted over its blocks or slots.
std::byte* row_at(const tensor& cache, int64_t at) { return cache.data + at * cache.shape[2] * size_bytes(cache.type); }
// Entry e of row r's sequence in a paged cache of `per_block` entries a block.
int64_t entry_at(int64_t per_block, const step_rows& rows, int64_t r, int64_t e) {
  const int64_t block = rows.tables.i32()[rows.table.i32()[r] * rows.tables.shape[1] + e / per_block];
  return block * per_block + e % per_block;
}

void store_row(const tensor& cache, int64_t at, const float* x, int64_t dim, quantiser how) {
  if (cache.type == dtype::f32)
    std::copy_n(x, dim, reinterpret_cast<float*>(row_at(cache, at)));
  else
    encode_record(row_at(cache, at), x, dim, how);
}

} // namespace

void visible_rows(const attention_args& a, const step_rows& rows, int64_t r, visible_keys& keys) {
  const int64_t dim = a.q.shape[2], ring = a.rings.shape[1], k = a.selected ? a.selected.shape[1] : 0;
  const int64_t first = rows.first_row.i32()[r], t0 = rows.position.i64()[first];
  const bool whole_block = a.seen == attention_args::visibility::draft_block;
  const int64_t newest = whole_block ? t0 - 1 : rows.position.i64()[r];
  const int64_t oldest = std::max({rows.floor.i64()[r], newest - a.window + 1, int64_t{0}});
  keys.rows.clear();
  const bool ring_records = a.rings.type == dtype::u8, records = k > 0 && a.compressed.type == dtype::u8;
  float* decoded = nullptr;
  if (ring_records || records) {
    const size_t most = static_cast<size_t>((a.window + k) * dim);
    if (keys.decoded.size() < most) keys.decoded.resize(most);
    decoded = keys.decoded.data();
  }
  const auto add_record = [&](const tensor& cache, int64_t at, quantiser how) {
    decode_record(decoded, row_at(cache, at), dim, how);
    keys.rows.push_back(decoded);
    decoded += dim;
  };
  const int64_t first_of_slot = rows.slot.i32()[r] * ring;
  for (int64_t p = oldest; p <= newest; ++p) {
    if (p >= t0)
      keys.rows.push_back(a.step_kv.f32() + (first + p - t0) * dim);
    else if (ring_records)
      add_record(a.rings, first_of_slot + p % ring, quantiser::fp8_32);
    else
      keys.rows.push_back(a.rings.f32() + (first_of_slot + p % ring) * dim);
  }
  if (whole_block)
    for (int64_t i = first; i < a.q.rows() && rows.first_row.i32()[i] == first; ++i)
      keys.rows.push_back(a.step_kv.f32() + i * dim);
  for (int64_t i = 0; i < k; ++i) {
    const int32_t e = a.selected.i32()[r * k + i];
    if (e < 0) continue;
    const int64_t at = entry_at(a.compressed.shape[1], rows, r, e);
    if (records)
      add_record(a.compressed, at, quantiser::fp4_e4m3_16);
    else
      keys.rows.push_back(a.compressed.f32() + at * dim);
  }
}

void attention_host(const attention_args& a, const step_rows& rows) {
  const int64_t heads = a.q.shape[1], dim = a.q.shape[2];
  TROUPE_CHECK(dim <= max_dim, "head dims stay below 1024");
  thread_local visible_keys seen;
  thread_local std::vector<float> score;
  for (int64_t r = 0; r < a.q.rows(); ++r) {
    visible_rows(a, rows, r, seen);
    const std::vector<const float*>& keys = seen.rows;
    const size_t n = keys.size();
    score.resize(n);
    for (int64_t head = 0; head < heads; ++head) {
      const float* q = a.q.f32() + (r * heads + head) * dim;
      float* o = a.o.f32() + (r * heads + head) * dim;
      std::fill_n(o, dim, 0.0F);
      if (n == 0) continue;
      for (size_t i = 0; i < n; ++i) score[i] = row_dot(q, keys[i], dim) * a.scale;
      const float top = *std::max_element(score.begin(), score.end());
      for (float& s : score) s = exp_f32(s - top);
      const float sum = row_sum(score.data(), static_cast<int64_t>(n)) + exp_f32(a.sink.f32()[head] - top);
      for (size_t i = 0; i < n; ++i)
        for (int64_t d = 0; d < dim; ++d) o[d] = std::fma(score[i], keys[i][d], o[d]);
      for (int64_t d = 0; d < dim; ++d) o[d] /= sum;
    }
  }
}

namespace {

void compress_pair(float* c, const float* u0, const float* g0, const float* u1, const float* g1, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) {
    const float top = std::max(g0[i], g1[i]);
    const float e0 = exp_f32(g0[i] - top), e1 = exp_f32(g1[i] - top);
    c[i] = (e0 * u0[i] + e1 * u1[i]) / (e0 + e1);
  }
}

} // namespace

void compress_pairs_host(tensor c, tensor u, tensor g, tensor pending, const step_rows& rows) {
  compress_pairs_by(compress_pair, c, u, g, pending, rows);
}

void compress_pairs_by(compress_pair_form pair, tensor c, tensor u, tensor g, tensor pending, const step_rows& rows) {
  const int64_t n = u.rows();
  if (n == 0) return;
  const int64_t dim = u.shape[1], pairs = pending.shape[1];
  const auto held = [&](int64_t r, int64_t position, int64_t which) {
    return pending.f32() + ((rows.slot.i32()[r] * pairs + position / 2 % pairs) * 2 + which) * dim;
  };
  for (int64_t r = 0; r < n; ++r) {
    const int64_t t = rows.position.i64()[r];
    if (t % 2 == 0) continue;
    const bool in_step = r > rows.first_row.i32()[r];
    const float* u0 = in_step ? u.f32() + (r - 1) * dim : held(r, t - 1, 0);
    const float* g0 = in_step ? g.f32() + (r - 1) * dim : held(r, t - 1, 1);
    pair(c.f32() + r * dim, u0, g0, u.f32() + r * dim, g.f32() + r * dim, dim);
  }
  for (int64_t r = 0; r < n; ++r) { // ascending, so the newest of two positions that share a place stays
    const int64_t t = rows.position.i64()[r];
    if (t % 2 != 0) continue;
    std::copy_n(u.f32() + r * dim, dim, held(r, t, 0));
    std::copy_n(g.f32() + r * dim, dim, held(r, t, 1));
  }
}

void scatter_entries_host(tensor cache, tensor x, tensor entries, quantiser how, const step_rows& rows) {
  if (x.rows() == 0) return;
  const int64_t dim = x.row_elements();
  holds_records(cache, how, dim);
  for (int64_t r = 0; r < x.rows(); ++r)
    if (const int32_t e = entries.i32()[r]; e >= 0)
      store_row(cache, entry_at(cache.shape[1], rows, r, e), x.f32() + r * dim, dim, how);
}

void write_rings_host(tensor rings, tensor x, const step_rows& rows) {
  if (x.rows() == 0) return;
  const int64_t ring = rings.shape[1], dim = x.row_elements();
  holds_records(rings, quantiser::fp8_32, dim);
  for (int64_t r = 0; r < x.rows(); ++r) // ascending positions: the last `ring` rows stay
    store_row(rings, rows.slot.i32()[r] * ring + rows.position.i64()[r] % ring, x.f32() + r * dim, dim,
              quantiser::fp8_32);
}

void rope_host(tensor x, tensor positions, tensor frequencies, bool inverse) {
  const int64_t rows = x.rows();
  if (rows == 0) return;
  const int64_t dim = x.shape[x.rank - 1], heads = x.row_elements() / dim, n = frequencies.n_elements();
  TROUPE_CHECK(2 * n <= dim && dim <= max_dim, "the rope part fits into a head");
  float cosine[max_dim / 2], sine[max_dim / 2];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = positions.i64()[r];
    if (t < 0) continue;
    for (int64_t p = 0; p < n; ++p) {
      const float angle = static_cast<float>(t) * frequencies.f32()[p];
      cosine[p] = std::cos(angle);
      sine[p] = inverse ? -std::sin(angle) : std::sin(angle);
    }
    for (int64_t head = 0; head < heads; ++head) {
      float* pair = x.f32() + (r * heads + head) * dim + dim - 2 * n;
      for (int64_t p = 0; p < n; ++p) {
        const float re = pair[2 * p], im = pair[2 * p + 1];
        pair[2 * p] = re * cosine[p] - im * sine[p];
        pair[2 * p + 1] = re * sine[p] + im * cosine[p];
      }
    }
  }
}

} // namespace troupe
