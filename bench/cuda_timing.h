// How the benches of the CUDA backend measure and print: a graph of many calls replayed, a line for each row.
#pragma once

#include "bench/cuda_targets.h"
#include "gpu/backend.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace troupe::bench {

inline constexpr double peak_bytes_per_s = 4.2e12; // device memory of an H200, read only, measured; perf.md
inline constexpr int64_t cold_bytes = 300 << 20;   // more than the 50 MB of L2 several times over

struct timing {
  double median_us = 0, least_us = 0;
};

// One graph of all of `calls`, replayed; time a call.
inline timing time_calls(backend& b, const std::vector<std::function<void()>>& calls, tensor any) {
  for (const auto& call : calls) call(); // loads the kernels
  float sink = 0;
  b.download(&sink, any, 4);
  const auto g = b.capture([&] {
    for (const auto& call : calls) call();
  });
  std::vector<double> us;
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    b.replay(*g);
    b.download(&sink, any, 4);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 2) us.push_back(took.count() / static_cast<double>(calls.size()));
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[0]};
}

template <class... Args> std::string text(const char* format, Args... args) {
  char name[128];
  std::snprintf(name, sizeof name, format, args...);
  return name;
}

// `target_us`: of this row, 0: the one of its name in cuda_targets.h, if there is one.
inline void row(const std::string& name, const timing& t, double weights, double bytes, double target_us = 0) {
  const target* listed = find_target(name);
  if (target_us == 0 && listed != nullptr) target_us = std::max(listed->us, 0.0);
  std::printf("%s,%.2f,%.2f,%.3g,%.0f,%.1f,%s\n", name.c_str(), t.median_us, t.least_us, weights / t.median_us * 1e6,
              bytes / t.median_us / 1e3, 100 * bytes / peak_bytes_per_s / (t.median_us * 1e-6),
              target_us > 0 ? text("%.4g", target_us).c_str() : "-");
  std::fflush(stdout);
}

} // namespace troupe::bench
