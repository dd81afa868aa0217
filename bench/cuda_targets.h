// The rows that bench_cuda is expected to print and the target of each, so that a row nobody ran is still named.
// Targets: issue 4, "Speed", turned into microseconds for the shapes measured; one H200.
#pragma once

#include <cstdio>
#include <string>

namespace troupe::bench {

// A row's name is its only key. us == 0: no target of its own; < 0: one that is not a time, told by `text`.
struct target {
  const char* name;
  double us;
  const char* text; // how the target is worded, if it is not a time
};

// K = 2, 3: 6e12 weights/s. K = 4 and above: 80 % of 4.2 TB/s. Eight rows: at least 90 % of the rate of one.
inline constexpr const char* of_one_row = "90 % of the rate of m=1";
inline constexpr target targets[] = {
    {"gemv mul1 5120x2304 K=2 m=1", 0, ""},
    {"gemv mul1 5120x2304 K=2 m=4", 0, ""},
    {"gemv mul1 5120x2304 K=2 m=8", -1, of_one_row},
    {"gemv mul1 5120x2304 K=3 m=1", 4.5, ""},
    {"gemv mul1 5120x2304 K=3 m=4", 0, ""},
    {"gemv mul1 5120x2304 K=3 m=8", -1, of_one_row},
    {"gemv mul1 2304x5120 K=3 m=1", 0, ""},
    {"gemv mul1 2304x5120 K=3 m=4", 0, ""},
    {"gemv mul1 2304x5120 K=3 m=8", -1, of_one_row},
    {"gemv mul1 1280x32768 K=5 m=1", 7.8, ""},
    {"gemv mul1 1280x32768 K=5 m=4", 0, ""},
    {"gemv mul1 1280x32768 K=5 m=8", -1, of_one_row},
    {"gemv mul1 8192x5120 K=5 m=1", 7.8, ""},
    {"gemv mul1 8192x5120 K=5 m=4", 0, ""},
    {"gemv mul1 8192x5120 K=5 m=8", -1, of_one_row},
    {"gemv mul1 16384x16384 K=2 m=1", 44.7, ""},
    {"gemv mul1 16384x16384 K=2 m=4", 0, ""},
    {"gemv mul1 16384x16384 K=2 m=8", -1, of_one_row},
    {"gemv mul1 16384x16384 K=3 m=1", 44.7, ""},
    {"gemv mul1 16384x16384 K=3 m=4", 0, ""},
    {"gemv mul1 16384x16384 K=3 m=8", -1, of_one_row},
    {"gemv mul1 16384x16384 K=4 m=1", 39.9, ""},
    {"gemv mul1 16384x16384 K=4 m=4", 0, ""},
    {"gemv mul1 16384x16384 K=4 m=8", -1, of_one_row},
    {"gemv mul1 16384x16384 K=5 m=1", 49.9, ""},
    {"gemv mul1 16384x16384 K=5 m=4", 0, ""},
    {"gemv mul1 16384x16384 K=5 m=8", -1, of_one_row},
    {"gemv mcg 16384x16384 K=3 m=1", 0, ""},
    {"gemv mcg 16384x16384 K=3 m=4", 0, ""},
    {"gemv mcg 16384x16384 K=3 m=8", -1, of_one_row},
    {"gemv mul1 5120x129280 K=6 m=1", 150, ""},
    {"gemv mul1 5120x129280 K=6 m=4", 0, ""},
    {"gemv mul1 5120x129280 K=6 m=8", -1, of_one_row},
    {"moe 384 top-6 K=3 m=1", 35, ""},
    {"moe 384 top-6 K=3 m=4", 0, ""},
    {"moe 384 top-6 K=3 m=8", 250, ""},
    {"moe 384 top-6 K=3 m=16", 0, ""},
    {"moe 384 top-6 K=3 m=1536", 5000, ""},
    {"moe 384 top-6 K=3 m=64", 0, ""},
    {"moe 384 top-6 K=3 m=4096", 0, ""},
    {"moe 384 top-6 K=3 m=8192", 0, ""},
    {"gemm mul1 5120x2304 K=3 m=64", 0, ""},
    {"gemm mul1 5120x2304 K=3 m=1024", 0, ""},
    {"gemm mul1 5120x2304 K=3 m=4096", 180, ""}, // 70 % of cuBLAS bf16, which takes 126 us
    {"gemm mul1 16384x16384 K=3 m=64", 0, ""},
    {"gemm mul1 16384x16384 K=3 m=1024", 0, ""},
    {"gemm mul1 16384x16384 K=3 m=4096", 4540, ""}, // 3.18 ms
    {"gemm mul1 1280x32768 K=5 m=64", 0, ""},
    {"gemm mul1 1280x32768 K=5 m=1024", 0, ""},
    {"gemm mul1 1280x32768 K=5 m=4096", 814, ""}, // 0.57 ms
    {"sampler 129280 top_p m=1", 0, ""},
    {"sampler 129280 top_p m=8", 60, ""},
    {"attention of the window m=1 at 64k", 0, ""},
    {"attention m=1 at 64k", 0, ""},
    {"attention_project m=1 at 64k", 0, ""},
    {"select_entries m=1 at 64k", 0, ""},
    {"mix m=1 at 64k", 0, ""},
    {"fold_norm m=1 at 64k", 0, ""},
    {"expand m=1 at 64k", 0, ""},
    {"expand_fold_norm m=1 at 64k", 0, ""},
    {"engram_gate m=1 at 64k", 0, ""},
    {"route m=1 at 64k", 0, ""},
    {"rms_norm m=1 at 64k", 0, ""},
    {"rope m=1 at 64k", 0, ""},
    {"quantise m=1 at 64k", 0, ""},
    {"write_rings m=1 at 64k", 0, ""},
    {"dequant_rows m=1 at 64k", 0, ""},
    {"receive m=1 at 64k", 0, ""},
    {"attention of the window m=8192 at 8k", 0, ""},
    {"attention m=8192 at 8k", 0, ""},
    {"attention_project m=8192 at 8k", 0, ""},
    {"select_entries m=8192 at 8k", 0, ""},
    {"mix m=8192 at 8k", 0, ""},
    {"fold_norm m=8192 at 8k", 0, ""},
    {"expand m=8192 at 8k", 0, ""},
    {"expand_fold_norm m=8192 at 8k", 0, ""},
    {"engram_gate m=8192 at 8k", 0, ""},
    {"route m=8192 at 8k", 0, ""},
    {"rms_norm m=8192 at 8k", 0, ""},
    {"rope m=8192 at 8k", 0, ""},
    {"quantise m=8192 at 8k", 0, ""},
    {"write_rings m=8192 at 8k", 0, ""},
    {"dequant_rows m=8192 at 8k", 0, ""},
    {"receive m=8192 at 8k", 0, ""},
    {"attention m=8192 at 64k", 0, ""},
    {"select_entries m=8192 at 64k", 0, ""},
    {"attention over records m=1", 0, ""},
    {"attention over records m=4", 0, ""},
    {"attention over records m=256", 0, ""},
    {"indexer over records n=8192", 0, ""},
    {"indexer over records n=131072", 0, ""},
    {"indexer over records n=1048576", 0, ""},
    {"attention over floats m=1", 0, ""},
    {"attention over floats m=4", 0, ""},
    {"attention over floats m=256", 0, ""},
    {"indexer over floats n=8192", 0, ""},
    {"indexer over floats n=131072", 0, ""},
    {"indexer over floats n=1048576", 0, ""},
    {"20 layers, decode m=1 at 512", 2200, ""},
    {"20 layers, decode m=4 at 512", 3500, ""},
    {"20 layers, verify m=4 at 512", 3500, ""},
    {"20 layers, decode m=1 at 8192", 2200, ""},
    {"20 layers, decode m=4 at 8192", 3500, ""},
    {"20 layers, verify m=4 at 8192", 3500, ""},
    {"20 layers, device idle in a decode round", -1, "3 % of it"},
    {"20 layers, prefill in chunks of 8192", 409600, ""}, // 20,000 tokens/s
};

inline const target* find_target(const std::string& name) {
  for (const target& t : targets)
    if (name == t.name) return &t;
  return nullptr;
}

// For a script that must know every row before the first one ran: name;target.
inline void print_targets() {
  for (const target& t : targets) {
    if (t.us > 0)
      std::printf("%s;at most %.6g us\n", t.name, t.us);
    else
      std::printf("%s;%s\n", t.name, t.us < 0 ? t.text : "-");
  }
}

} // namespace troupe::bench
