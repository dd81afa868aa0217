// The official npm client against a running server: tests/clients/openai_client.mjs. Needs node and npm (etc/deps.sh
// --test).
#include "tests/served.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <sys/wait.h>

TEST_CASE("clients: the official openai client runs chat, streams, tools and errors" * doctest::test_suite("slow")) {
  troupe::test::served server({});
  const std::string command =
      TROUPE_SOURCE_DIR "/tests/clients/run.sh http://127.0.0.1:" + std::to_string(server.port()) + " 1>&2";
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  CHECK_MESSAGE(WEXITSTATUS(status) != 77, "node, npm or the pinned package is not to be had");
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(server.stop(SIGTERM) == 0);
}
