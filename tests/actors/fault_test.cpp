// Rows of side tables that cannot be read: who is told, and who does not notice.
#include "actors/request.h"
#include "storage/check.h"
#include "tests/actors/tiny_ring.h"
#include "tests/says.h"

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("ring: a table read that fails once is tried again") {
  world w;
  scripted_ring r(w);
  r.say(" fine");
  r.tables->n_failures = 1;
  const auto out = sink();
  r.start(r.completion("Hi"), out);
  w.run();
  CHECK(out->choices.at(0).content == " fine");
}

TEST_CASE("ring: an unreadable table row fails the sequence that needs it, and the others of its step go on") {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    world w;
    scripted_ring r(w, scripted_ring::small_limits(), n_ranks);
    r.say(" a b c d e");
    r.tables->broken_token = r.text->words()->encode(" zebra").front();
    const auto good = sink(), bad = sink();
    r.start(r.completion("One two three"), good);
    r.start(r.completion("One zebra three"), bad);
    w.run();
    CHECK(bad->error.status == 503);
    CHECK(bad->error.message.find("rows.bin") != std::string::npos);
    CHECK(bad->n_opens == 1);
    CHECK(good->choices.at(0).content == " a b c d e");
    CHECK(r.is_idle());
  }
}

TEST_CASE("ring: an unreadable table row fails its request with 503 and the service goes on") {
  world w;
  scripted_ring r(w);
  r.say(" fine");
  r.tables->n_failures = 2;
  const auto bad = sink(), good = sink();
  r.start(r.completion("Hi"), bad);
  w.run();
  CHECK(bad->error.status == 503);
  CHECK(bad->error.message.find("rows.bin") != std::string::npos);
  CHECK(r.numbers->ended_error == 1);
  r.start(r.completion("Hi"), good);
  w.run();
  CHECK(good->choices.at(0).content == " fine");
  CHECK(r.is_idle());
}

// The disk of the tables, without io_uring: one read of it hangs until the test lets it go.
TEST_CASE("ring: a table read that hangs fails its step with 503, alone, and the steps behind it are read") {
  fault::arm("row_store.no_io_uring", 0, 64);
  tiny_ring r({}, [](ring_config& c) {
    c.open_tables = [n = c.limits.max_running](int32_t rank) { return open_tables(tiny_folder, rank, 1, n, 0); };
  });
  r.w.run();
  fault::disarm_all();
  const auto want = r.ask(tiny_completion("One two three", 8));
  fault::arm("row_store.hang");
  fault::arm("row_store.late"); // its deadline is over at once
  const auto bad = r.start(tiny_completion("Four five six", 8));
  r.w.run();
  CHECK(bad->error.status == 503);
  CHECK(says(bad->error.message, "unanswered read"));
  CHECK(r.r.is_idle());
  const auto good = r.ask(tiny_completion("One two three", 8)); // it hangs still
  CHECK(good->choices.at(0).ids == want->choices.at(0).ids);
  fault::let_go();
  fault::disarm_all();
  CHECK(r.r.numbers->restarts == 0);
}
