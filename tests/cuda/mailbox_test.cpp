// Bytes that the host hands to a graph which is under way, on the device.
#include "tests/cuda/twins.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace troupe::test {
namespace {

// Host memory that the device writes into, to see what a graph has done while it is under way.
class window {
public:
  explicit window(backend& b) : memory_(b.make_mailbox(4, "test")) {}
  tensor number() const { return tensor(memory_->bytes().data(), dtype::f32, {1, 1}); }
  float seen() const {
    const uint32_t bits = std::atomic_ref(*reinterpret_cast<uint32_t*>(memory_->bytes().data())).load();
    return std::bit_cast<float>(bits);
  }
  bool wait_for(float x) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (seen() != x && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return seen() == x;
  }

private:
  std::unique_ptr<mailbox> memory_;
};

std::vector<uint8_t> read(backend& b, tensor t) {
  std::vector<uint8_t> v(static_cast<size_t>(t.size_bytes()));
  b.download(v.data(), t, t.size_bytes());
  return v;
}

} // namespace

TEST_CASE("cuda mailbox: a graph runs up to where it receives, waits, and goes on when the bytes are posted") {
  const auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  REQUIRE(b->runs_ahead());
  const window before(*b), after(*b);
  const auto mail = b->make_mailbox(4, "test"); // ends first, so that a failed check leaves nothing waiting
  const tensor one = b->allocate(dtype::f32, {1, 1}, "one"), got = b->allocate(dtype::f32, {1, 1}, "got");
  float x = 1;
  b->upload(one, &x, 4);
  const auto g = b->capture([&] {
    b->copy_rows(before.number(), {}, one, {});
    b->receive({{got}}, *mail);
    b->copy_rows(after.number(), {}, got, {});
  });
  for (int round = 2; round < 50; ++round) {
    mail->clear();
    b->replay(*g);
    REQUIRE(before.wait_for(x));
    CHECK(after.seen() != static_cast<float>(round));
    const float bytes = static_cast<float>(round);
    std::memcpy(mail->bytes().data(), &bytes, 4);
    mail->post();
    REQUIRE(after.wait_for(bytes));
    x = -bytes;
    b->upload(one, &x, 4);
  }
}

TEST_CASE("cuda mailbox: a thousand replays receive the bytes of their own time, posted before or behind the launch") {
  const auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  std::vector<tensor> parts; // more than a launch takes, of sizes that are no multiple of sixteen and of many blocks
  int64_t n_bytes = 0;
  for (const int64_t n : {5, 6336, 64 * 6336, 17, 16, 0, 40001}) {
    parts.push_back(b->allocate(dtype::u8, {n}, "part"));
    n_bytes = mailbox::behind(n_bytes, n);
  }
  const auto mail = b->make_mailbox(n_bytes, "test");
  mail->post();
  b->receive(parts, *mail);
  const auto g = b->capture([&] { b->receive(parts, *mail); });
  int n_wrong = 0;
  for (uint32_t round = 0; round < 1000; ++round) {
    const bool is_late = round % 2 == 1;
    mail->clear();
    if (is_late) b->replay(*g);
    uint32_t bits = round;
    for (std::byte& x : mail->bytes()) x = static_cast<std::byte>((bits = bits * 1664525U + 1013904223U) >> 24);
    mail->post();
    if (!is_late) b->replay(*g);
    int64_t at = 0;
    for (const tensor& t : parts) {
      const auto got = read(*b, t);
      if (std::memcmp(got.data(), mail->bytes().data() + at, got.size()) != 0) ++n_wrong;
      at = mailbox::behind(at, t.size_bytes());
    }
  }
  CHECK(n_wrong == 0);
}

TEST_CASE("cuda mailbox: one that ends frees a graph that waits for it") {
  const auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  const tensor to = b->allocate(dtype::u8, {64}, "to");
  auto mail = b->make_mailbox(64, "test");
  const auto g = b->capture([&] { b->receive({{to}}, *mail); });
  b->replay(*g);
  mail.reset();
  CHECK(read(*b, to) == std::vector<uint8_t>(64));
}

} // namespace troupe::test
