// Checks, fault points, log levels and the table of element types.
#include "storage/check.h"
#include "storage/dtype.h"
#include "storage/log.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

using namespace troupe;

TEST_CASE("check: a false condition logs why and aborts, a true one does nothing") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    start_log("info");
    TROUPE_CHECK(1 + 1 == 2, "arithmetic");
    TROUPE_CHECK(1 + 1 == 3, "the reason to print");
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char piece[256];
  for (ssize_t n; (n = ::read(ends[0], piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(text.find("the reason to print") != std::string::npos);
  CHECK(text.find("check_test.cpp") != std::string::npos);
  CHECK(text.find("arithmetic") == std::string::npos);
}

TEST_CASE("fault: a point fails after `skip` passes, `times` times, and others are left alone") {
  CHECK_FALSE(fault::at("a"));
  fault::arm("a", 2, 2);
  CHECK_FALSE(fault::at("b"));
  CHECK_FALSE(fault::at("a"));
  CHECK_FALSE(fault::at("a"));
  CHECK(fault::at("a"));
  CHECK(fault::at("a"));
  CHECK_FALSE(fault::at("a"));
  fault::disarm_all();
}

TEST_CASE("fault: disarm_all ends what is armed") {
  fault::arm("a");
  fault::arm("b", 0, 5);
  fault::disarm_all();
  CHECK_FALSE(fault::at("a"));
  CHECK_FALSE(fault::at("b"));
}

TEST_CASE("log: the six level names are known and others are refused by name") {
  for (const char* level : {"trace", "debug", "info", "warn", "error", "off"}) CHECK_NOTHROW(start_log(level));
  CHECK_THROWS_WITH_AS(start_log("loud"), "log level 'loud', expected trace, debug, info, warn, error or off",
                       std::invalid_argument);
  start_log("warn");
}

TEST_CASE("dtype: every name leads to its type and back, with its size") {
  const struct {
    dtype type;
    const char* name;
    int size;
  } rows[] = {{dtype::f64, "F64", 8},         {dtype::f32, "F32", 4},         {dtype::f16, "F16", 2},
              {dtype::bf16, "BF16", 2},       {dtype::f8_e4m3, "F8_E4M3", 1}, {dtype::f8_e5m2, "F8_E5M2", 1},
              {dtype::f8_e8m0, "F8_E8M0", 1}, {dtype::i64, "I64", 8},         {dtype::i32, "I32", 4},
              {dtype::i16, "I16", 2},         {dtype::i8, "I8", 1},           {dtype::u64, "U64", 8},
              {dtype::u32, "U32", 4},         {dtype::u16, "U16", 2},         {dtype::u8, "U8", 1},
              {dtype::boolean, "BOOL", 1}};
  for (const auto& r : rows) {
    CAPTURE(r.name);
    CHECK(name(r.type) == r.name);
    CHECK(size_bytes(r.type) == r.size);
    CHECK(to_dtype(r.name) == r.type);
  }
}

TEST_CASE("dtype: unknown names, other case and blanks are no type") {
  for (const char* n : {"", "F8", "f32", "BF16 ", "F4", "C64"}) CHECK_FALSE(to_dtype(n).has_value());
}
