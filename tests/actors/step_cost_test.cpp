// The estimate of a step's cost and the rows that fit into a time.
#include "actors/step_cost.h"

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("step_cost: before anything is measured a small chunk, bounded by what there is room for") {
  step_cost c;
  CHECK_FALSE(c.is_known());
  CHECK(c.prefill_rows(4, 100000, 512) == 64);
  CHECK(c.prefill_rows(4, 100000, 20) == 20);
}

TEST_CASE("step_cost: the parts are found from steps with and without prompts, and rows fill the gap") {
  step_cost c;
  for (int i = 0; i < 30; ++i) {
    c.learn(1 + i % 8, 0, 5000 + 1000 * (1 + i % 8));
    c.learn(1 + i % 8, 100, 5000 + 1000 * (1 + i % 8) + 100 * 200);
  }
  CHECK(c.decode_us(8) == doctest::Approx(13000).epsilon(0.02));
  CHECK(c.prefill_row_us() == doctest::Approx(200).epsilon(0.02));
  const auto n = c.prefill_rows(8, 100000, 4096);
  CHECK(13000 + 200 * n <= 100000);
  CHECK(13000 + 200 * n > 70000);
}

TEST_CASE("step_cost: a machine that becomes three times as dear is followed within ten steps") {
  step_cost c;
  for (int i = 0; i < 50; ++i) c.learn(4, 64, 4000 + 64 * 100);
  for (int i = 0; i < 10; ++i) c.learn(4, 64, 3 * (4000 + 64 * 100));
  CHECK(c.decode_us(4) + 64 * c.prefill_row_us() == doctest::Approx(3 * 10400).epsilon(0.15));
}

TEST_CASE("step_cost: streams that need the whole gap leave prompts an eighth of it, and never less than a row") {
  step_cost c;
  for (int i = 0; i < 20; ++i) {
    c.learn(8, 0, 100000);
    c.learn(8, 10, 100000 + 10 * 500);
  }
  CHECK(c.prefill_rows(8, 100000, 512) == doctest::Approx(25).epsilon(0.05));
  CHECK(c.prefill_rows(8, 1000, 512) == 1);
}

TEST_CASE("step_cost: steps that cost nothing set no bound") {
  step_cost c;
  c.learn(0, 10, 0);
  c.learn(3, 0, 0);
  CHECK(c.prefill_rows(3, 1000, 512) == 512);
}
