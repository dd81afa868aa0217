// The check at start, with the host's vector code as the device that is checked.
#include "gpu/self_check.h"
#include "storage/check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>

using namespace troupe;

namespace {

std::vector<weight_variant> all_variants() {
  using format = stored_matrix::format;
  std::vector<weight_variant> all;
  for (const auto book : {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg, stored_matrix::codebook::inst3})
    for (const int32_t rate : {2, 6, 12}) all.push_back({false, format::exl3, book, rate, 0, dtype::f32});
  all.push_back({false, format::exl3, stored_matrix::codebook::mul1, 5, 0, dtype::f32});
  all.push_back({true, format::exl3, stored_matrix::codebook::mul1, 6, 8, dtype::f32});
  for (const format how : {format::fp8_block, format::fp8_row, format::fp4}) {
    all.push_back({.how = how});
    all.push_back({.is_experts = true, .how = how});
  }
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16}) all.push_back({.type = type});
  return all;
}

struct armed {
  explicit armed(const char* point, uint64_t times = 1) { fault::arm(point, 0, times); }
  ~armed() { fault::disarm_all(); }
};

} // namespace

TEST_CASE("self_check: every operation and variant is right, within a second") {
  const auto b = make_host_backend({.n_threads = 1});
  const auto start = std::chrono::steady_clock::now();
  const auto found = self_check(*b, all_variants(), {});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(found.size() > 40);
  for (const auto& f : found) CHECK_MESSAGE(f.is_right, f.kernel << ": error " << f.error << ", bound " << f.bound);
  MESSAGE("self_check on the host: " << found.size() << " kernels in " << took.count() << " s");
}

TEST_CASE("self_check: a wrong form is parked and the next one is checked in its place") {
  const auto b = make_host_backend({.n_threads = 1});
  const weight_variant mul1{false, stored_matrix::format::exl3, stored_matrix::codebook::mul1, 6, 0, dtype::f32};
  const armed wrong("self_check linear EXL3 mul1 K=3");
  std::vector<std::string> parked;
  const auto found = self_check(*b, std::vector{mul1}, [&](const weight_variant& v) {
    parked.push_back(name(v));
    return true;
  });
  REQUIRE(parked == std::vector<std::string>{"linear EXL3 mul1 K=3"});
  REQUIRE(found.size() > 2);
  const auto &before = found[found.size() - 2], &last = found.back();
  CHECK(before.kernel == last.kernel);
  CHECK((!before.is_right && before.is_parked && last.is_right && !last.is_parked));
}

TEST_CASE("self_check: a kernel without another form stays wrong, by name") {
  const auto b = make_host_backend({.n_threads = 1});
  const armed wrong("self_check attention");
  const auto found = self_check(*b, {}, [](const weight_variant&) { return true; });
  CHECK(std::count_if(found.begin(), found.end(), [](const auto& f) { return !f.is_right; }) == 1);
  const auto at = std::find_if(found.begin(), found.end(), [](const auto& f) { return !f.is_right; });
  REQUIRE(at != found.end());
  CHECK(at->kernel == "attention");
  CHECK(!at->is_parked);
  const weight_variant fp4{.how = stored_matrix::format::fp4};
  const armed again("self_check linear fp4", 2);
  const auto refused = self_check(*b, std::vector{fp4}, [](const weight_variant&) { return false; });
  CHECK(refused.back().kernel == "linear fp4");
  CHECK((!refused.back().is_right && !refused.back().is_parked));
}
