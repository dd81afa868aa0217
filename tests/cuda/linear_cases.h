// What holds for linears of either row class on the device.
#pragma once

#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

namespace troupe::test {

// The scratch of `small` forces slabs of rows.
inline void slabs_give_the_same_bits(twins& large, twins& small, const stored_sample& w, int64_t rows) {
  std::vector<float> of[2];
  int i = 0;
  for (twins* t : {&large, &small}) {
    const auto m = t->device->load(w.m);
    const twin_tensor x = t->floats({rows, w.m.in}, 2), y = t->output({rows, w.m.out});
    t->device->linear(y.device, x.device, *m);
    of[i++] = t->read_device(y);
  }
  CHECK(std::memcmp(of[0].data(), of[1].data(), of[0].size() * 4) == 0);
}

// Three matrices, each with its own part of a row.
inline void groups_lie_side_by_side(twins& t, const char* what, int64_t rows, double bound) {
  std::vector<stored_sample> w;
  std::vector<std::unique_ptr<matrix>> host, device;
  std::vector<const matrix*> host_view, device_view;
  for (unsigned g = 0; g < 3; ++g) {
    w.push_back(trellis_sample(stored_matrix::codebook::mul1, 10, 256, 128, 20 + g));
    host.push_back(t.host->load(w.back().m));
    device.push_back(t.device->load(w.back().m));
    host_view.push_back(host.back().get());
    device_view.push_back(device.back().get());
  }
  const twin_tensor x = t.floats({rows, 3, 256}, 4), y = t.output({rows, 3, 128});
  t.host->linear_grouped(y.host, x.host, host_view);
  t.device->linear_grouped(y.device, x.device, device_view);
  t.near_rms(what, y, bound);
}

} // namespace troupe::test
