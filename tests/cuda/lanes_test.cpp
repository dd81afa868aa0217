// Streams side by side, and device memory that ends at any point.
#include "model/model.h"
#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

#include <system_error>
#include <thread>

namespace troupe::test {
namespace {

// exl3.md 9.2: elsewhere two streams shared a workspace and a lock in it, and both hung.
TEST_CASE("cuda lanes: two streams run EXL3 kernels 100,000 times and end, each with its own result") {
  constexpr int n_times = 100'000, n_threads = 2;
  std::vector<float> first[n_threads], last[n_threads];
  std::vector<std::thread> streams;
  for (int s = 0; s < n_threads; ++s)
    streams.emplace_back([&, s] {
      const auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
      const auto book = s == 0 ? stored_matrix::codebook::mul1 : stored_matrix::codebook::mcg;
      const stored_sample w = trellis_sample(book, 6, 1280, 2304, static_cast<unsigned>(s));
      const auto m = b->load(w.m);
      const tensor x = b->allocate(dtype::f32, {4, 1280}, "x"), y = b->allocate(dtype::f32, {4, 2304}, "y");
      const auto values = random_floats(x.n_elements(), 5);
      b->upload(x, values.data(), x.size_bytes());
      for (int i = 0; i < n_times; ++i) {
        const int64_t rows = 1 + i % 4;
        b->linear(y.slice(0, rows), x.slice(0, rows), *m);
        if (i != 3 && i != n_times - 1) continue;
        auto& to = i == 3 ? first[s] : last[s];
        to.resize(static_cast<size_t>(y.n_elements()));
        b->download(to.data(), y, y.size_bytes());
      }
    });
  for (auto& s : streams) s.join();
  for (int s = 0; s < n_threads; ++s) CHECK(first[s] == last[s]);
  CHECK(first[0] != first[1]);
}

// Every allocation fails once, or every tenth of them where there are many: by name, and what was taken comes back.
TEST_CASE("cuda memory: a device that is too small at any point of loading refuses by name and loses nothing") {
  const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
  model_options o;
  o.folder = folder;
  o.max_sequences = 2;
  o.n_blocks = 4;
  o.max_rows = 64;
  constexpr int64_t scratch = 8 << 20;
  const auto load = [&](int64_t limit) {
    const auto b = make_cuda_backend({.memory_bytes = limit, .scratch_bytes = scratch});
    const auto m = load_model(*b, o, nullptr);
    return b->allocated_bytes();
  };
  const int64_t all = load(INT64_MAX);
  int n_refused = 0;
  for (int64_t limit = 0; limit < all; limit += std::max<int64_t>(all / 60, 1)) {
    try {
      load(limit);
      FAIL("a device with too little memory was enough");
    } catch (const std::system_error& e) {
      ++n_refused;
      CHECK(e.code() == std::errc::not_enough_memory);
      CHECK(std::string(e.what()).find("bytes wanted") != std::string::npos);
    }
  }
  MESSAGE("refused loads: " << n_refused);
  CHECK(load(all) == all);
}

} // namespace
} // namespace troupe::test
