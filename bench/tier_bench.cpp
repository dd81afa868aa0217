// What a block and a snapshot cost on their way between the tiers: device to host memory and back, to a file and back.
#include "bench/bench.h"
#include "model/model.h"
#include "storage/tier_files.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const std::string model_folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
constexpr int64_t n_files = 400;

void print(const char* what, int64_t size_bytes, const bench::sample& s) {
  std::printf("%s,%lld,%.2f,%.2f,%.2f,%.0f\n", what, static_cast<long long>(size_bytes), s.median_us, s.mad_us,
              s.min_us, static_cast<double>(size_bytes) / s.median_us);
}

void bench_files(const char* writes, const char* reads, size_t size_bytes) {
  const auto folder = std::filesystem::temp_directory_path() / ("troupe_bench_" + std::to_string(::getpid()));
  {
    tier_files files({folder, "fp_bench", 0, 1, 0});
    if (const auto why = files.open()) {
      std::fprintf(stderr, "%s\n", why->what.c_str());
      return;
    }
    std::vector<std::byte> payload(size_bytes, std::byte{7}), back;
    tier_entry e;
    e.symbols.assign(64, 1);
    e.payload_bytes = static_cast<int64_t>(size_bytes);
    print(writes, e.payload_bytes,
          bench::measure(
              [&](int64_t i) {
                e.id = static_cast<uint64_t>(i) + 1;
                if (i < n_files) (void)files.write(e, payload);
              },
              101));
    print(reads, e.payload_bytes, bench::measure([&](int64_t i) { (void)files.read(1 + i % 100, back); }, 101));
  }
  std::filesystem::remove_all(folder);
}

} // namespace

int main() {
  const auto device = make_host_backend({.n_threads = 1});
  model_options o;
  o.folder = model_folder;
  o.max_sequences = 2;
  o.n_blocks = 64;
  o.max_rows = 64;
  const auto weights = load_model(*device, o, nullptr);
  const auto tables = open_tables(model_folder, 0, 1, 2);
  std::vector<int32_t> ids(64, 300), blocks{0};
  sequence_rows s;
  s.tokens = ids;
  s.blocks = blocks;
  s.n_prompt = 64;
  std::vector<std::byte> records(ids.size() * static_cast<size_t>(tables->record_bytes_per_token())), block, window;
  tables->read({&s, 1}, records);
  weights->forward({&s, 1}, records);

  std::printf("what,bytes,median_us,mad_us,min_us,mb_per_s\n");
  const int64_t block_bytes = weights->block_bytes();
  print("block out", block_bytes, bench::measure([&](int64_t i) { weights->save_block(i % 64, block); }));
  print("block in", block_bytes, bench::measure([&](int64_t i) { weights->load_block(i % 64, block); }));
  weights->save_slot(0, 64, window);
  const auto window_bytes = static_cast<int64_t>(window.size());
  print("snapshot out", window_bytes, bench::measure([&](int64_t) { weights->save_slot(0, 64, window); }));
  print("snapshot in", window_bytes, bench::measure([&](int64_t) { weights->load_slot(1, 64, window); }));
  bench_files("block to file", "block from file", static_cast<size_t>(block_bytes));
  bench_files("snapshot to file", "snapshot from file", static_cast<size_t>(window_bytes + block_bytes));
  return 0;
}
