// Items are some panels x some rows.
#include "gpu/split_linear.h"

#include <algorithm>

namespace troupe {
namespace {

// Multiply-adds below which waking a thread costs more than it saves: about 2 us of one core (AMD EPYC 9004, 2 cores,
// 2026-11).
constexpr int64_t least_work = 48 * 1024;
constexpr int64_t least_rows = 8; // of a part: what one pass holds in registers

void run_groups(vector_level level, host_threads& threads, float* y, const float* x,
                std::span<const matrix* const> groups, int64_t n_rows) {
  const auto n_groups = static_cast<int64_t>(groups.size());
  const host_matrix& shape = as_host(*groups[0]);
  const int64_t y_stride = n_groups * shape.out, x_stride = n_groups * shape.in;
  const auto run = [&](int64_t g, int64_t p, int64_t last, int64_t r, int64_t n) {
    linear_panels(level, as_host(*groups[static_cast<size_t>(g)]), p, last, y + r * y_stride + g * shape.out, y_stride,
                  x + r * x_stride + g * shape.in, x_stride, n);
  };
  if (threads.size() == 1 || n_rows * n_groups * shape.out * shape.in < least_work) {
    for (int64_t g = 0; g < n_groups; ++g) run(g, 0, shape.n_panels(), 0, n_rows);
    return;
  }
  // Many rows: a part of them for each thread, which then finds its own rows in its cache. Few rows: all of them in
  // every item. Panels are cut so that a thread has about four items; one row wants four panels at once.
  const int64_t n_threads = threads.size();
  const int64_t by_rows = n_rows >= least_rows * n_threads ? n_threads : 1;
  const int64_t per_thread = by_rows == 1 ? 2 * n_threads : 4;
  const int64_t panels = std::clamp<int64_t>(n_groups * shape.n_panels() / per_thread, 1, by_rows == 1 ? 4 : 64);
  const int64_t by_panels = (shape.n_panels() + panels - 1) / panels;
  threads.for_each(by_rows * n_groups * by_panels, [&](int64_t item) {
    const int64_t p = item % by_panels * panels, g = item / by_panels % n_groups, part = item / by_panels / n_groups;
    const int64_t r = n_rows * part / by_rows;
    run(g, p, std::min(p + panels, shape.n_panels()), r, n_rows * (part + 1) / by_rows - r);
  });
}

} // namespace

void linear_fast(vector_level level, host_threads& threads, tensor y, tensor x, const matrix& m) {
  TROUPE_CHECK(x.n_elements() % m.in == 0 && y.n_elements() % m.out == 0 &&
                   x.n_elements() / m.in == y.n_elements() / m.out,
               "a linear's input and output have as many rows");
  const matrix* group = &m;
  if (x.n_elements() != 0) run_groups(level, threads, y.f32(), x.f32(), {&group, 1}, x.n_elements() / m.in);
}

void linear_grouped_fast(vector_level level, host_threads& threads, tensor y, tensor x,
                         std::span<const matrix* const> groups) {
  const auto n_groups = static_cast<int64_t>(groups.size());
  TROUPE_CHECK(n_groups > 0 && x.n_elements() % (n_groups * groups[0]->in) == 0, "x holds one part for every group");
  const int64_t n_rows = x.n_elements() / (n_groups * groups[0]->in);
  TROUPE_CHECK(y.n_elements() == n_rows * n_groups * groups[0]->out, "y holds one part for every group");
  for (const matrix* m : groups)
    TROUPE_CHECK(m->out == groups[0]->out && m->in == groups[0]->in, "the matrices of all groups have one shape");
  if (n_rows != 0) run_groups(level, threads, y.f32(), x.f32(), groups, n_rows);
}

} // namespace troupe
