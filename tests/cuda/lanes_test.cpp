// Streams side by side, and device memory that ends at any point.
#include "model/model.h"
#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

#include <algorithm>
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

TEST_CASE("cuda uploads: the caller's bytes are its own again when an upload returns") {
  const auto b = make_cuda_backend({});
  const tensor busy = b->allocate(dtype::f32, {16 << 20}, "busy");
  std::vector<float> bytes;
  for (const int64_t n : {int64_t{1}, int64_t{256}, int64_t{1024}, int64_t{16'384}, int64_t{16'385}, int64_t{262'144},
                          int64_t{5'000'001}}) {
    constexpr int n_uploads = 12;
    const tensor to = b->allocate(dtype::f32, {n_uploads, n}, "to");
    for (int i = 0; i < 100; ++i) b->scale(busy, 1); // milliseconds that the uploads stand behind
    bytes.resize(static_cast<size_t>(n));
    for (int i = 0; i < n_uploads; ++i) {
      std::fill(bytes.begin(), bytes.end(), static_cast<float>(i + 1));
      b->upload(to.slice(i, 1), bytes.data(), n * 4);
      std::fill(bytes.begin(), bytes.end(), -1.0F);
    }
    std::vector<float> got(static_cast<size_t>(to.n_elements()));
    b->download(got.data(), to, to.size_bytes());
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < to.n_elements(); ++i)
      n_wrong += got[static_cast<size_t>(i)] == static_cast<float>(i / n + 1) ? 0 : 1;
    CHECK_MESSAGE(n_wrong == 0, n << " floats");
  }
}

// Ranks of one process meet through host memory, many times a step.
TEST_CASE("cuda uploads: two threads get back what they sent, every time") {
  constexpr int n_times = 20'000, n_threads = 2;
  int n_wrong[n_threads] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < n_threads; ++t)
    threads.emplace_back([&, t] {
      const auto b = make_cuda_backend({.scratch_bytes = 1 << 20});
      const tensor x = b->allocate(dtype::f32, {1031}, "x"), y = b->allocate(dtype::f32, {1031}, "y");
      std::vector<float> sent(1031), got(1031);
      for (int i = 0; i < n_times; ++i) {
        std::fill(sent.begin(), sent.end(), static_cast<float>(2 * i + t));
        b->upload(x, sent.data(), x.size_bytes());
        b->copy_rows(y, {}, x, {});
        b->add(y, x);
        for (float& v : sent) v *= 2;
        std::fill(got.begin(), got.end(), -1.0F);
        b->download(got.data(), y, y.size_bytes());
        if (got != sent) ++n_wrong[t];
      }
    });
  for (auto& t : threads) t.join();
  for (const int n : n_wrong) CHECK(n == 0);
}

// A warp that came late scaled what another had scaled: seen where two ranks shared the device.
TEST_CASE("cuda rows: a few elements are scaled and added once, however busy the device is") {
  const std::jthread hog([](const std::stop_token& over) {
    const auto b = make_cuda_backend({.scratch_bytes = 1 << 20});
    const tensor x = b->allocate(dtype::f32, {1 << 20}, "x");
    float one = 0;
    while (!over.stop_requested()) {
      for (int i = 0; i < 50; ++i) b->scale(x, 1);
      b->download(&one, x, 4);
    }
  });
  const auto b = make_cuda_backend({.scratch_bytes = 1 << 20});
  int n_wrong = 0;
  for (const int64_t n : {int64_t{1}, int64_t{6}, int64_t{32}, int64_t{64}, int64_t{300}}) {
    const tensor x = b->allocate(dtype::f32, {n}, "x"), y = b->allocate(dtype::f32, {n}, "y");
    std::vector<float> ones(static_cast<size_t>(n), 1.0F), got(ones.size());
    b->upload(y, ones.data(), y.size_bytes());
    for (int i = 0; i < 1000; ++i) {
      b->upload(x, ones.data(), x.size_bytes());
      for (int k = 0; k < 8; ++k) b->scale(x, 0.5F), b->add(x, y); // nearer and nearer to 2
      b->download(got.data(), x, x.size_bytes());
      for (const float v : got) n_wrong += v == 2 - 0x1p-8F ? 0 : 1;
    }
  }
  CHECK(n_wrong == 0);
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
