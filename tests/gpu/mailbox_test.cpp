// Bytes in the middle of work, on the host backend.
#include "gpu/backend.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <system_error>

namespace troupe {
namespace {

TEST_CASE("mailbox: a captured receive gives each replay the bytes that were posted before it") {
  auto b = make_host_backend({.n_threads = 1});
  const tensor first = b->allocate(dtype::u8, {21}, "first"), second = b->allocate(dtype::u8, {2, 20}, "second");
  const int64_t at = mailbox::behind(0, 21);
  CHECK(at == 32);
  CHECK(mailbox::behind(at, 40) == 80); // a part begins where sixteen bytes can be read at once
  const auto mail = b->make_mailbox(mailbox::behind(at, 40), "test");
  CHECK_FALSE(mail->is_posted());
  CHECK_FALSE(b->runs_ahead());
  for (const std::byte x : mail->bytes()) CHECK(x == std::byte{});
  auto g = b->capture([&] { b->receive(std::vector<tensor>{first, second}, *mail); });
  for (int round = 1; round < 4; ++round) {
    mail->clear();
    CHECK_FALSE(mail->is_posted());
    for (size_t i = 0; i < mail->bytes().size(); ++i)
      mail->bytes()[i] = static_cast<std::byte>(static_cast<int>(i) + round);
    mail->post();
    b->replay(*g);
    CHECK(std::equal(first.data, first.data + 21, mail->bytes().begin()));
    CHECK(std::equal(second.data, second.data + 40, mail->bytes().begin() + at));
  }
}

TEST_CASE("mailbox: what goes past the memory limit is refused by name") {
  auto b = make_host_backend({.n_threads = 1, .memory_bytes = 1000});
  std::string why;
  try {
    b->make_mailbox(2000, "Engram records of a step");
  } catch (const std::system_error& e) { why = e.what(); }
  CHECK(says(why, "Engram records of a step"));
}

} // namespace
} // namespace troupe
