// Enough experts or rows: an item is an expert with some of its rows from end to end, so that what lies between the
// matrices stays in one core's cache. Few: two loops, gate and up of some columns with their activation, then down of
// some columns. An element of the result never depends on how rows are grouped, because every linear has a fixed order
// of its sum and the slots of a row are added in slot order at the end.
#include "gpu/fast_moe.h"

#include <algorithm>
#include <cstring>

namespace troupe {
namespace {

// Panels of one item: a few items a thread, because experts differ in rows; two panels at least, which is what one row
// needs to keep enough sums in flight.
int64_t panels_of_item(int64_t n_batches, const host_matrix& m, const host_threads& threads) {
  return std::clamp<int64_t>(n_batches * m.n_panels() / (6 * threads.size()), std::min<int64_t>(2, m.n_panels()),
                             m.n_panels());
}
int64_t n_items(const host_matrix& m, int64_t panels) { return (m.n_panels() + panels - 1) / panels; }

struct mlp {
  const host_matrix *gate, *up, *down;
  const float* x;      // (n_rows, gate->in)
  float *g, *u, *out;  // (n_rows, width), (n_rows, width), (n_rows, down->out)
  const float* weight; // (n_rows) or nullptr: 1
  int64_t n_rows;
};

// Columns of one item: g = activation(gate x, up x).
void first_half(vector_level level, const mlp& e, int64_t item, int64_t panels, float limit) {
  const int64_t p = item * panels, last = std::min(p + panels, e.gate->n_panels());
  const int64_t width = e.gate->out, from = p * panel_columns, n = std::min(last * panel_columns, width) - from;
  linear_panels(level, *e.gate, p, last, e.g, width, e.x, e.gate->in, e.n_rows);
  linear_panels(level, *e.up, p, last, e.u, width, e.x, e.gate->in, e.n_rows);
  const row_kernels* kernels = row_kernels_of(level);
  const auto activate = kernels == nullptr ? gate_activation : kernels->gate_activation;
  for (int64_t r = 0; r < e.n_rows; ++r)
    activate(e.g + r * width + from, e.u + r * width + from, n, e.weight == nullptr ? 1 : e.weight[r], limit);
}

void second_half(vector_level level, const mlp& e, int64_t item, int64_t panels) {
  const int64_t p = item * panels, last = std::min(p + panels, e.down->n_panels());
  linear_panels(level, *e.down, p, last, e.out, e.down->out, e.g, e.down->in, e.n_rows);
}

void whole(vector_level level, const mlp& e, float limit) {
  first_half(level, e, 0, e.gate->n_panels(), limit);
  second_half(level, e, 0, e.down->n_panels());
}

// Sorts the slots that the set holds by expert: batches, the row of each place, the place of each slot.
void group_rows(moe_workspace& w, const host_expert_set& set, const tensor& ids, const tensor& weights) {
  const int64_t n_slots = ids.n_elements(), k = ids.shape[1];
  w.batches.assign(static_cast<size_t>(set.n_experts), {});
  w.places.assign(static_cast<size_t>(n_slots), -1);
  const auto expert_of = [&](int64_t slot) {
    const int32_t e = ids.i32()[slot] - set.first;
    return e >= 0 && e < set.n_experts ? e : -1;
  };
  for (int64_t s = 0; s < n_slots; ++s)
    if (const int32_t e = expert_of(s); e >= 0) ++w.batches[static_cast<size_t>(e)].n_rows;
  int64_t n_places = 0;
  for (size_t e = 0; e < w.batches.size(); ++e) {
    auto& b = w.batches[e];
    b.of = &set.experts[e];
    b.first = n_places;
    n_places += b.n_rows;
    b.n_rows = 0;
  }
  w.rows.resize(static_cast<size_t>(n_places));
  w.slot_weight.resize(static_cast<size_t>(n_places));
  for (int64_t s = 0; s < n_slots; ++s)
    if (const int32_t e = expert_of(s); e >= 0) {
      auto& b = w.batches[static_cast<size_t>(e)];
      const auto place = static_cast<size_t>(b.first + b.n_rows++);
      w.places[static_cast<size_t>(s)] = static_cast<int64_t>(place);
      w.rows[place] = s / k;
      w.slot_weight[place] = weights.f32()[s];
    }
  std::erase_if(w.batches, [](const auto& b) { return b.n_rows == 0; });
}

void add(vector_level level, float* y, const float* x, int64_t n) {
  if (const row_kernels* kernels = row_kernels_of(level)) return kernels->add(y, x, n);
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

// A few rows are not worth a second thread.
template <class Work> void each_row(host_threads& threads, int64_t n_rows, const Work& work) {
  constexpr int64_t item_rows = 16;
  threads.for_each((n_rows + item_rows - 1) / item_rows, [&](int64_t item) {
    for (int64_t r = item * item_rows; r < std::min((item + 1) * item_rows, n_rows); ++r) work(r);
  });
}

void resize(std::vector<float>& v, int64_t n) {
  if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
}

// Rows [from, to) of every batch in turn are one item of the loop of whole experts.
struct piece {
  size_t batch;
  int64_t from, to;
};

// About four pieces a thread, eight rows at least, which is what one pass holds in registers.
std::vector<piece> cut(const moe_workspace& w, const host_threads& threads) {
  std::vector<piece> pieces;
  const auto n_places = static_cast<int64_t>(w.rows.size());
  for (size_t b = 0; b < w.batches.size(); ++b) {
    const int64_t n = w.batches[b].n_rows;
    const int64_t parts = std::clamp<int64_t>(n * 4 * threads.size() / n_places, 1, (n + 7) / 8);
    for (int64_t i = 0; i < parts; ++i) pieces.push_back({b, n * i / parts, n * (i + 1) / parts});
  }
  return pieces;
}

void run_piece(vector_level level, moe_workspace& w, const piece& p, const tensor& x, int64_t dim, float limit) {
  thread_local std::vector<float> gathered, g, u;
  const auto& b = w.batches[p.batch];
  const int64_t n = p.to - p.from, first = b.first + p.from, width = b.of->gate->out;
  resize(gathered, n * dim);
  resize(g, n * width);
  resize(u, n * width);
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(gathered.data() + i * dim, x.f32() + w.rows[static_cast<size_t>(first + i)] * dim,
                static_cast<size_t>(dim) * sizeof(float));
  whole(level,
        {b.of->gate.get(), b.of->up.get(), b.of->down.get(), gathered.data(), g.data(), u.data(),
         w.down.data() + first * dim, w.slot_weight.data() + first, n},
        limit);
}

// Fewer experts than threads: all rows of all of them, column by column.
void run_columns(vector_level level, host_threads& threads, moe_workspace& w, const tensor& x, int64_t dim,
                 float limit) {
  const auto n_places = static_cast<int64_t>(w.rows.size());
  const host_matrix &gate = *w.batches[0].of->gate, &down = *w.batches[0].of->down;
  resize(w.x, n_places * dim);
  resize(w.gate, n_places * gate.out);
  resize(w.up, n_places * gate.out);
  for (int64_t i = 0; i < n_places; ++i)
    std::memcpy(w.x.data() + i * dim, x.f32() + w.rows[static_cast<size_t>(i)] * dim,
                static_cast<size_t>(dim) * sizeof(float));
  const auto batch = [&](int64_t i) {
    const auto& b = w.batches[static_cast<size_t>(i)];
    return mlp{b.of->gate.get(),
               b.of->up.get(),
               b.of->down.get(),
               w.x.data() + b.first * dim,
               w.gate.data() + b.first * gate.out,
               w.up.data() + b.first * gate.out,
               w.down.data() + b.first * dim,
               w.slot_weight.data() + b.first,
               b.n_rows};
  };
  const auto n_batches = static_cast<int64_t>(w.batches.size());
  const int64_t wide = panels_of_item(n_batches, gate, threads), first_items = n_items(gate, wide);
  const int64_t deep = panels_of_item(n_batches, down, threads), second_items = n_items(down, deep);
  threads.for_each(n_batches * first_items,
                   [&](int64_t i) { first_half(level, batch(i / first_items), i % first_items, wide, limit); });
  threads.for_each(n_batches * second_items,
                   [&](int64_t i) { second_half(level, batch(i / second_items), i % second_items, deep); });
}

} // namespace

void experts_fast(vector_level level, host_threads& threads, moe_workspace& w, tensor y, tensor x,
                  const expert_set& any, tensor ids, tensor weights, float limit) {
  const host_expert_set& set = as_host(any);
  const int64_t n_rows = ids.shape[0], k = ids.shape[1];
  if (n_rows == 0) return;
  const int64_t dim = y.n_elements() / n_rows;
  group_rows(w, set, ids, weights);
  resize(w.down, static_cast<int64_t>(w.rows.size()) * dim);
  const std::vector<piece> pieces = cut(w, threads);
  const auto n_pieces = static_cast<int64_t>(pieces.size());
  if (n_pieces >= threads.size())
    threads.for_each(n_pieces, [&](int64_t i) { run_piece(level, w, pieces[static_cast<size_t>(i)], x, dim, limit); });
  else if (n_pieces > 0)
    run_columns(level, threads, w, x, dim, limit);
  each_row(threads, n_rows, [&](int64_t r) {
    float* row = y.f32() + r * dim;
    std::memset(row, 0, static_cast<size_t>(dim) * sizeof(float));
    for (int64_t j = 0; j < k; ++j)
      if (const int64_t place = w.places[static_cast<size_t>(r * k + j)]; place >= 0)
        add(level, row, w.down.data() + place * dim, dim);
  });
}

void gated_mlp_fast(vector_level level, host_threads& threads, moe_workspace& w, tensor y, tensor x, const matrix& gate,
                    const matrix& up, const matrix& down, float limit) {
  const int64_t n_rows = x.n_elements() / gate.in;
  if (n_rows == 0) return;
  resize(w.gate, n_rows * gate.out);
  resize(w.up, n_rows * gate.out);
  const auto rows = [&](int64_t first, int64_t n) {
    return mlp{&as_host(gate),
               &as_host(up),
               &as_host(down),
               x.f32() + first * gate.in,
               w.gate.data() + first * gate.out,
               w.up.data() + first * gate.out,
               y.f32() + first * down.out,
               nullptr,
               n};
  };
  const int64_t parts = std::min<int64_t>(2 * threads.size(), n_rows / 8);
  if (parts >= threads.size()) {
    threads.for_each(parts, [&](int64_t i) {
      const int64_t first = n_rows * i / parts, last = n_rows * (i + 1) / parts;
      whole(level, rows(first, last - first), limit);
    });
    return;
  }
  const mlp e = rows(0, n_rows);
  const int64_t wide = panels_of_item(1, *e.gate, threads), deep = panels_of_item(1, *e.down, threads);
  threads.for_each(n_items(*e.gate, wide), [&](int64_t i) { first_half(level, e, i, wide, limit); });
  threads.for_each(n_items(*e.down, deep), [&](int64_t i) { second_half(level, e, i, deep); });
}

} // namespace troupe
