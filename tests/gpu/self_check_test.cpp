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
  const auto found = self_check(*b, std::vector{mul1}, [&](const parkable& form) {
    parked.push_back(name(std::get<weight_variant>(form)));
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
  const auto found = self_check(*b, {}, [](const parkable&) { return true; });
  CHECK(std::count_if(found.begin(), found.end(), [](const auto& f) { return !f.is_right; }) == 1);
  const auto at = std::find_if(found.begin(), found.end(), [](const auto& f) { return !f.is_right; });
  REQUIRE(at != found.end());
  CHECK(at->kernel == "attention");
  CHECK(!at->is_parked);
  const weight_variant fp4{.how = stored_matrix::format::fp4};
  const armed again("self_check linear fp4", 2);
  const auto refused = self_check(*b, std::vector{fp4}, [](const parkable&) { return false; });
  CHECK(refused.back().kernel == "linear fp4");
  CHECK((!refused.back().is_right && !refused.back().is_parked));
}

TEST_CASE("self_check: attention of wide rows has another form in each class") {
  const auto b = make_host_backend({.n_threads = 1});
  for (const row_class rows : {row_class::decode, row_class::prefill}) {
    const std::string kernel = name(wide_attention{rows});
    const armed wrong(("self_check " + kernel).c_str());
    std::vector<row_class> parked;
    const auto found = self_check(*b, {}, [&](const parkable& form) {
      parked.push_back(std::get<wide_attention>(form).rows);
      return true;
    });
    CHECK(parked == std::vector{rows});
    const auto first = std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.kernel == kernel; });
    REQUIRE(found.end() - first > 1);
    CHECK((!first->is_right && first->is_parked));
    CHECK((first[1].kernel == kernel && first[1].is_right)); // checked again in its place
  }
}
