// Two loops over threads: gate and up of some columns with their activation, then down of some columns. An element of
// the result never depends on how rows are grouped, because every linear has a fixed order of its sum and the slots of
// a row are added in slot order at the end.
#include "gpu/fast_moe.h"

#include <algorithm>
#include <cstring>

namespace troupe {
namespace {

constexpr int64_t item_panels = 2; // outputs of one item: small enough to share an expert between threads

int64_t n_items(const host_matrix& m) { return (m.n_panels() + item_panels - 1) / item_panels; }

struct mlp {
  const host_matrix *gate, *up, *down;
  const float* x;      // (n_rows, gate->in)
  float *g, *u, *out;  // (n_rows, width), (n_rows, width), (n_rows, down->out)
  const float* weight; // (n_rows) or nullptr: 1
  int64_t n_rows;
};

// Columns of one item: g = activation(gate x, up x).
void first_half(vector_level level, const mlp& e, int64_t item, float limit) {
  const int64_t p = item * item_panels, last = std::min(p + item_panels, e.gate->n_panels());
  const int64_t width = e.gate->out, from = p * panel_columns, n = std::min(last * panel_columns, width) - from;
  linear_panels(level, *e.gate, p, last, e.g, width, e.x, e.gate->in, e.n_rows);
  linear_panels(level, *e.up, p, last, e.u, width, e.x, e.gate->in, e.n_rows);
  const row_kernels* kernels = row_kernels_of(level);
  const auto activate = kernels == nullptr ? gate_activation : kernels->gate_activation;
  for (int64_t r = 0; r < e.n_rows; ++r)
    activate(e.g + r * width + from, e.u + r * width + from, n, e.weight == nullptr ? 1 : e.weight[r], limit);
}

void second_half(vector_level level, const mlp& e, int64_t item) {
  const int64_t p = item * item_panels, last = std::min(p + item_panels, e.down->n_panels());
  linear_panels(level, *e.down, p, last, e.out, e.down->out, e.g, e.down->in, e.n_rows);
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

} // namespace

void experts_fast(vector_level level, host_threads& threads, moe_workspace& w, tensor y, tensor x,
                  const expert_set& any, tensor ids, tensor weights, float limit) {
  const host_expert_set& set = as_host(any);
  const int64_t n_rows = ids.shape[0], k = ids.shape[1];
  if (n_rows == 0) return;
  const int64_t dim = y.n_elements() / n_rows;
  group_rows(w, set, ids, weights);
  const auto n_places = static_cast<int64_t>(w.rows.size());
  const int64_t width = w.batches.empty() ? 0 : w.batches[0].of->gate->out;
  resize(w.x, n_places * dim);
  resize(w.gate, n_places * width);
  resize(w.up, n_places * width);
  resize(w.down, n_places * dim);
  each_row(threads, n_places, [&](int64_t i) {
    std::memcpy(w.x.data() + i * dim, x.f32() + w.rows[static_cast<size_t>(i)] * dim,
                static_cast<size_t>(dim) * sizeof(float));
  });
  const auto batch = [&](int64_t b) {
    const auto& of = w.batches[static_cast<size_t>(b)];
    return mlp{of.of->gate.get(),
               of.of->up.get(),
               of.of->down.get(),
               w.x.data() + of.first * dim,
               w.gate.data() + of.first * width,
               w.up.data() + of.first * width,
               w.down.data() + of.first * dim,
               w.slot_weight.data() + of.first,
               of.n_rows};
  };
  const auto n_batches = static_cast<int64_t>(w.batches.size());
  if (n_batches > 0) {
    const int64_t first_items = n_items(*w.batches[0].of->gate), second_items = n_items(*w.batches[0].of->down);
    threads.for_each(n_batches * first_items,
                     [&](int64_t i) { first_half(level, batch(i / first_items), i % first_items, limit); });
    threads.for_each(n_batches * second_items,
                     [&](int64_t i) { second_half(level, batch(i / second_items), i % second_items); });
  }
  const auto sum_row = [&](int64_t r) {
    float* row = y.f32() + r * dim;
    std::memset(row, 0, static_cast<size_t>(dim) * sizeof(float));
    for (int64_t j = 0; j < k; ++j)
      if (const int64_t place = w.places[static_cast<size_t>(r * k + j)]; place >= 0)
        add(level, row, w.down.data() + place * dim, dim);
  };
  each_row(threads, n_rows, sum_row);
}

void gated_mlp_fast(vector_level level, host_threads& threads, moe_workspace& w, tensor y, tensor x, const matrix& gate,
                    const matrix& up, const matrix& down, float limit) {
  const int64_t n_rows = x.n_elements() / gate.in;
  if (n_rows == 0) return;
  resize(w.gate, n_rows * gate.out);
  resize(w.up, n_rows * gate.out);
  resize(w.down, n_rows * down.out);
  const mlp e = {&as_host(gate), &as_host(up),  &as_host(down), x.f32(), w.gate.data(),
                 w.up.data(),    w.down.data(), nullptr,        n_rows};
  threads.for_each(n_items(*e.gate), [&](int64_t i) { first_half(level, e, i, limit); });
  threads.for_each(n_items(*e.down), [&](int64_t i) { second_half(level, e, i); });
  each_row(threads, n_rows,
           [&](int64_t r) { add(level, y.f32() + r * down.out, w.down.data() + r * down.out, down.out); });
}

} // namespace troupe
