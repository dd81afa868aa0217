// What every bench prints: median, median absolute deviation, minimum, and how far that is from what the machine can
// do.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace troupe::bench {

struct sample {
  double median_us = 0, mad_us = 0, min_us = 0;
  int n = 0;
};

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times work(i), i counting up, after `warm` calls, until `n` times are taken. Several calls make one time where one
// call is shorter than 20 us, so that reading the clock does not show.
template <class Work> sample measure(Work work, int n = 51, int warm = 5) {
  int64_t i = 0;
  for (; i < warm; ++i) work(i);
  double start = now_us();
  work(i++);
  const double once = std::max(now_us() - start, 0.01);
  const int batch = std::max(1, static_cast<int>(std::ceil(20 / once)));
  std::vector<double> times;
  for (int t = 0; t < n; ++t) {
    start = now_us();
    for (int b = 0; b < batch; ++b) work(i++);
    times.push_back((now_us() - start) / batch);
  }
  sample s;
  s.n = n;
  s.median_us = median(times);
  s.min_us = *std::min_element(times.begin(), times.end());
  for (double& t : times) t = std::fabs(t - s.median_us);
  s.mad_us = median(times);
  return s;
}

// What bounds an operation: bytes it must move and fused steps it must make, against the measured peaks.
struct peaks {
  double bytes_per_us = 0, flops_per_us = 0;
};
inline double roofline_percent(const sample& s, double bytes, double flops, const peaks& p) {
  if (p.bytes_per_us <= 0 || p.flops_per_us <= 0 || s.median_us <= 0) return 0;
  return 100 * std::max(bytes / p.bytes_per_us, flops / p.flops_per_us) / s.median_us;
}

} // namespace troupe::bench
