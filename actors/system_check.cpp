// The self-check of a rank at its start: what it finds goes to the log and to the counters.
#include "actors/system_check.h"

#include "actors/counters.h"
#include "gpu/cuda_backend.h"
#include "gpu/self_check.h"
#include "storage/log.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace troupe {

namespace {
constexpr int64_t scratch_bytes = 32 << 20; // the shapes are small
}

void check_kernels(backend& device, counters& numbers) {
  const auto began = std::chrono::steady_clock::now();
  const auto used = loaded_variants(device);
  const auto trial =
      make_cuda_backend({.device = device_of(device), .scratch_bytes = scratch_bytes}); // its memory comes back
  const auto found =
      self_check(*trial, used, [&](const weight_variant& v) { return park(*trial, v) && park(device, v); });
  for (const kernel_finding& f : found) {
    if (f.is_right) continue;
    const std::string text = fmt::format("self-check: {} is wrong on {}: error {:.3g}, at most {:.3g} was expected",
                                         f.kernel, device.name(), f.error, f.bound);
    if (!f.is_parked) throw std::runtime_error(text + "; no other form of it is left");
    spdlog::error("{}; it is parked, another form takes its place", text);
  }
  for (const weight_variant& v : used) {
    const auto is_parked = [&](const kernel_finding& f) { return f.is_parked && f.kernel == name(v); };
    if (std::none_of(found.begin(), found.end(), is_parked)) continue;
    if (v.rows == row_class::prefill) {
      numbers.parked_prompts = true;
      continue;
    }
    auto& rates = v.is_experts ? numbers.parked_experts : numbers.parked_linears;
    rates |= 1U << v.rate | (v.is_experts ? 1U << v.down_rate : 0U);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  spdlog::info("self-check: {} kernels on {} in {:.2f} s", found.size(), device.name(), took.count());
}

} // namespace troupe
