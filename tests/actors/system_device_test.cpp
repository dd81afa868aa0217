// Which backend computes.
#include "actors/system_device.h"

#include "gpu/backend.h"
#include "gpu/cuda_backend.h"

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("system_device: auto is what the machine has, and a device that is not there is refused with the reason") {
  std::string why;
  const bool has_device = !list_cuda_devices(why).empty();
  CHECK(choose_backend("host") == "host");
  CHECK(choose_backend("null") == "null");
  CHECK(choose_backend("auto") == (has_device ? "cuda" : "host"));
  if (has_device) return;
  CHECK(!why.empty());
  CHECK_THROWS_WITH_AS(choose_backend("cuda"), doctest::Contains(why.c_str()), std::runtime_error);
}

TEST_CASE("system_device: ranks share the threads that the settings allow") {
  settings s;
  s.backend = "host";
  s.threads = 3;
  CHECK(make_device(s, 0, 1, nullptr)->name().find("3 threads") != std::string::npos);
  CHECK(make_device(s, 1, 2, nullptr)->name().find("1 thread") != std::string::npos);
}
