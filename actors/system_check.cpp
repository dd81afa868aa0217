// The self-check of a rank at its start: what it finds goes to the log and to the counters.
#include "actors/system_check.h"

#include "actors/counters.h"
#include "gpu/cuda_backend.h"
#include "gpu/self_check.h"
#include "storage/log.h"

#include <chrono>
#include <stdexcept>
#include <variant>

namespace troupe {

namespace {

constexpr int64_t scratch_bytes = 32 << 20; // the shapes are small

void count(counters& numbers, const weight_variant& v) {
  if (v.rows == row_class::prefill)
    numbers.parked_prompts = true;
  else
    (v.is_experts ? numbers.parked_experts : numbers.parked_linears) |=
        1U << v.rate | (v.is_experts ? 1U << v.down_rate : 0U);
}
void count(counters& numbers, const wide_attention& a) {
  (a.rows == row_class::prefill ? numbers.parked_prompt_attention : numbers.parked_attention) = true;
}

} // namespace

void check_kernels(backend& device, counters& numbers) {
  const auto began = std::chrono::steady_clock::now();
  const auto used = loaded_variants(device);
  const auto trial =
      make_cuda_backend({.device = device_of(device), .scratch_bytes = scratch_bytes}); // its memory comes back
  const auto found = self_check(*trial, used, [&](const parkable& form) {
    if (!park(*trial, form) || !park(device, form)) return false;
    std::visit([&](const auto& f) { count(numbers, f); }, form);
    return true;
  });
  for (const kernel_finding& f : found) {
    if (f.is_right) continue;
    const std::string text = fmt::format("self-check: {} is wrong on {}: error {:.3g}, at most {:.3g} was expected",
                                         f.kernel, device.name(), f.error, f.bound);
    if (!f.is_parked) throw std::runtime_error(text + "; no other form of it is left");
    spdlog::error("{}; it is parked, another form takes its place", text);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  spdlog::info("self-check: {} kernels on {} in {:.2f} s", found.size(), device.name(), took.count());
}

} // namespace troupe
