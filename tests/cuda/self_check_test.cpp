// The check at start on the device: all is right, and the second form of mul1 products takes over from the first.
#include "gpu/self_check.h"
#include "storage/check.h"
#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

#include <algorithm>
#include <chrono>

using namespace troupe;
using namespace troupe::test;

namespace {

std::vector<weight_variant> variants() {
  using format = stored_matrix::format;
  std::vector<weight_variant> all;
  for (const int32_t rate : {2, 4, 5, 6, 8, 10, 12})
    all.push_back({false, format::exl3, stored_matrix::codebook::mul1, rate, 0, dtype::f32});
  for (const int32_t rate : {4, 6}) all.push_back({true, format::exl3, stored_matrix::codebook::mul1, rate, rate});
  all.push_back({false, format::exl3, stored_matrix::codebook::mcg, 6, 0, dtype::f32});
  for (const format how : {format::fp8_block, format::fp4}) all.push_back({.is_experts = true, .how = how});
  all.push_back({.type = dtype::bf16});
  for (size_t i = 0, n = all.size(); i < n; ++i) {
    if (all[i].is_experts && all[i].how != format::exl3) continue;
    all.push_back(all[i]);
    all.back().rows = row_class::prefill;
  }
  return all;
}

std::vector<std::string> parked_names(const std::vector<kernel_finding>& found) {
  std::vector<std::string> names;
  for (const kernel_finding& f : found)
    if (f.is_parked) names.push_back(f.kernel);
  return names;
}

} // namespace

TEST_CASE("cuda self_check: wrong kernels of prompts are parked, those of decode serve prompts then") {
  twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 384, 256, 3);
  const auto on_device = t.device->load(w.m);
  const auto used = loaded_variants(*t.device);
  if (used.size() == 1) return; // a device without them
  const twin_tensor x = t.floats({5, 384}, 1), decode = t.output({5, 256}), prompt = t.output({5, 256});
  t.device->linear(decode.device, x.device, *on_device);
  fault::arm("self_check linear EXL3 mul1 K=3, prompts");
  const auto found = self_check(*t.device, used, [&](const parkable& form) { return park(*t.device, form); });
  fault::disarm_all();
  CHECK(parked_names(found) == std::vector<std::string>{"linear EXL3 mul1 K=3, prompts"});
  CHECK(found.back().is_right);
  t.device->set_row_classes(all_prefill);
  t.device->linear(prompt.device, x.device, *on_device);
  CHECK(t.read_device(prompt) == t.read_device(decode));
}

TEST_CASE("cuda self_check: wrong attention of wide rows is parked, that of all widths takes its place") {
  for (const row_class rows : {row_class::decode, row_class::prefill}) {
    const auto b = make_cuda_backend({.scratch_bytes = 32 << 20});
    const std::string kernel = name(wide_attention{rows});
    fault::arm("self_check " + kernel);
    const auto found = self_check(*b, {}, [&](const parkable& form) { return park(*b, form); });
    fault::disarm_all();
    const auto parked = parked_names(found);
    if (parked.empty()) { // a device without kernels of its own for them: nothing takes their place
      CHECK(!park(*b, wide_attention{rows}));
      continue;
    }
    CHECK(parked == std::vector{kernel});
    const auto last = std::find_if(found.rbegin(), found.rend(), [&](const auto& f) { return f.kernel == kernel; });
    CHECK_MESSAGE(last->is_right, kernel << ": error " << last->error);
    CHECK(!park(*b, wide_attention{rows})); // there is no third one
  }
}

TEST_CASE("cuda self_check: all kernels are right in under three seconds") {
  const auto start = std::chrono::steady_clock::now();
  const auto b = make_cuda_backend({.scratch_bytes = 32 << 20});
  const auto found = self_check(*b, variants(), {});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (const auto& f : found) CHECK_MESSAGE(f.is_right, f.kernel << ": error " << f.error << ", bound " << f.bound);
  MESSAGE("self_check: " << found.size() << " kernels in " << took.count() << " s, the backend included");
  CHECK(took.count() < 3);
}

TEST_CASE("cuda self_check: wrong integer products are parked, the f16 form serves the matrix then") {
  twins t;
  const stored_sample w = trellis_sample(stored_matrix::codebook::mul1, 6, 384, 256, 3);
  const auto on_host = t.host->load(w.m), on_device = t.device->load(w.m);
  const auto used = loaded_variants(*t.device);
  REQUIRE(used.front() == variant_of(w.m)); // and where prompts have their own kernels, those
  const twin_tensor x = t.floats({5, 384}, 1), before = t.output({5, 256}), after = t.output({5, 256});
  t.run([&](backend& b) { b.linear(t.of(b, before), t.of(b, x), &b == t.host.get() ? *on_host : *on_device); });
  fault::arm("self_check linear EXL3 mul1 K=3");
  const auto found = self_check(*t.device, used, [&](const parkable& form) { return park(*t.device, form); });
  fault::disarm_all();
  CHECK(parked_names(found) == std::vector<std::string>{"linear EXL3 mul1 K=3"});
  CHECK(found.back().is_right);
  t.run([&](backend& b) { b.linear(t.of(b, after), t.of(b, x), &b == t.host.get() ? *on_host : *on_device); });
  t.near_rms("linear EXL3 mul1 K=3 in the f16 form, parked", after, 1e-3);
  CHECK(t.read_device(before) != t.read_device(after)); // another form rounds otherwise
  CHECK(!park(*t.device, used[0]));                     // there is no third one
}

TEST_CASE("cuda self_check: experts with parked integer products use the f16 form") {
  twins t;
  fault::arm("self_check experts EXL3 mul1 K=3, down K=4");
  weight_variant v{true, stored_matrix::format::exl3, stored_matrix::codebook::mul1, 6, 8, dtype::f32};
  const auto found =
      self_check(*t.device, std::vector{v}, [&](const parkable& wrong) { return park(*t.device, wrong); });
  fault::disarm_all();
  CHECK(parked_names(found) == std::vector{name(v)});
  CHECK_MESSAGE(found.back().is_right, "error " << found.back().error);
}
