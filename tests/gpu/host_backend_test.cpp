// Memory, copies, tables and graphs of the host backend.
#include "gpu/backend.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <system_error>

namespace troupe {
namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::system_error& e) { return e.what(); }
  return "accepted";
}

stored_matrix stored(std::vector<float>& w, int64_t out, int64_t in) {
  stored_matrix m;
  m.name = "layers.0.attn.wq_a";
  m.out = out;
  m.in = in;
  m.weight = tensor(w.data(), dtype::f32, {out, in});
  return m;
}

TEST_CASE("host_backend: memory is zero, aligned and counted, and what goes past the limit is refused by name") {
  auto b = make_host_backend({.n_threads = 1, .memory_bytes = 10000});
  tensor t = b->allocate(dtype::f32, {10, 100}, "rings");
  CHECK(reinterpret_cast<uintptr_t>(t.data) % 64 == 0);
  for (int64_t i = 0; i < t.n_elements(); ++i) CHECK(t.f32()[i] == 0);
  CHECK(b->allocated_bytes() == 4000);
  const std::string message = refusal([&] { b->allocate(dtype::f32, {2000}, "compressed cache of layer 2"); });
  CHECK(says(message, "compressed cache of layer 2: 8000 bytes wanted, 4000 of 10000 in use"));
  CHECK(b->allocated_bytes() == 4000);
}

TEST_CASE("host_backend: a matrix counts its memory until its owner drops it") {
  auto b = make_host_backend({.n_threads = 1, .memory_bytes = 1 << 20});
  std::vector<float> w(64 * 32, 0.1F); // 0.1 is no bf16 number: kept in f32
  auto m = b->load(stored(w, 64, 32));
  CHECK(m->size_bytes == 64 * 32 * 4);
  CHECK(b->allocated_bytes() == m->size_bytes);
  m.reset();
  CHECK(b->allocated_bytes() == 0);
  std::vector<float> exact(64 * 32, 0.5F);
  m = b->load(stored(exact, 64, 32));
  CHECK(m->size_bytes == 64 * 32 * 2);
  auto small = make_host_backend({.n_threads = 1, .memory_bytes = 1000});
  CHECK(says(refusal([&] { small->load(stored(w, 64, 32)); }), "layers.0.attn.wq_a: 8192 bytes wanted"));
}

TEST_CASE("host_backend: an embedding table gives rows of its own ids and zeros for others, in every float type") {
  auto b = make_host_backend({.n_threads = 1});
  tensor table = b->allocate(dtype::bf16, {3, 2}, "embed");
  const uint16_t one_two[6] = {0x3F80, 0x4000, 0x3F80, 0x3F80, 0x4000, 0x4000};
  b->upload(table, one_two, sizeof one_two);
  tensor ids = b->allocate(dtype::i32, {4}, "ids"), y = b->allocate(dtype::f32, {4, 2}, "y");
  const int32_t wanted[4] = {10, 12, 9, 13};
  b->upload(ids, wanted, sizeof wanted);
  for (int64_t i = 0; i < 8; ++i) y.f32()[i] = 7;
  b->embed(y, table, 10, ids);
  float got[8];
  b->download(got, y, sizeof got);
  CHECK(std::vector<float>(got, got + 8) == std::vector<float>{1, 2, 2, 2, 0, 0, 0, 0});
}

TEST_CASE("host_backend: rows are copied by number on either side") {
  auto b = make_host_backend({.n_threads = 1});
  tensor x = b->allocate(dtype::f32, {3, 2}, "x"), y = b->allocate(dtype::f32, {4, 2}, "y");
  for (int64_t i = 0; i < 6; ++i) x.f32()[i] = static_cast<float>(i);
  tensor from = b->allocate(dtype::i32, {2}, "from"), to = b->allocate(dtype::i32, {2}, "to");
  from.i32()[0] = 2, from.i32()[1] = 0, to.i32()[0] = 1, to.i32()[1] = 3;
  b->copy_rows(y, to, x, from);
  CHECK(std::vector<float>(y.f32(), y.f32() + 8) == std::vector<float>{0, 0, 4, 5, 0, 0, 0, 1});
  b->copy_rows(y, {}, x, {});
  CHECK(std::vector<float>(y.f32(), y.f32() + 8) == std::vector<float>{0, 1, 2, 3, 4, 5, 0, 1});
  b->copy_rows(y.slice(0, 0), {}, x.slice(0, 0), {});
  b->add(x, x);
  b->scale(x, 0.5F);
  CHECK(x.f32()[5] == 5);
}

TEST_CASE("host_backend: a captured sequence runs when it is replayed, as often as it is") {
  auto b = make_host_backend({.n_threads = 1});
  tensor x = b->allocate(dtype::f32, {1}, "x");
  x.f32()[0] = 1;
  auto g = b->capture([&] { b->add(x, x); });
  CHECK(x.f32()[0] == 1);
  b->replay(*g);
  b->replay(*g);
  CHECK(x.f32()[0] == 4);
}

TEST_CASE("host_backend: it says what it runs on, and refuses to run on no thread") {
  CHECK(make_host_backend({.n_threads = 1, .scalar_only = true})->name() == "host scalar, 1 thread");
  CHECK(says(make_host_backend({.n_threads = 2})->name(), ", 2 threads"));
  CHECK_THROWS_AS(make_host_backend({.n_threads = 0}), std::invalid_argument);
}

} // namespace
} // namespace troupe
