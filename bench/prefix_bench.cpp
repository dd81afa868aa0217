// Lookups in the prefix index, ids to symbols included: time a 64-token block, for prompts of several lengths in a full
// index.
#include "actors/prefix_index.h"
#include "bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

using namespace troupe;

namespace {

constexpr int64_t block_tokens = 64, n_conversations = 64;

std::vector<int32_t> conversation(std::mt19937_64& random, const std::vector<int32_t>& system_prompt,
                                  int64_t n_tokens) {
  auto out = system_prompt;
  while (static_cast<int64_t>(out.size()) < n_tokens) out.push_back(static_cast<int32_t>(random() % 129280));
  return out;
}

void measure_length(int64_t n_tokens) {
  std::mt19937_64 random(static_cast<uint64_t>(n_tokens));
  const int64_t n_blocks = (n_tokens / block_tokens + 1) * n_conversations;
  block_pool pool(n_blocks, block_tokens);
  prefix_index index({"bench", 4 * n_conversations}, pool);
  const auto system_prompt = conversation(random, {}, std::min<int64_t>(500, n_tokens / 2));
  std::vector<std::vector<int32_t>> prompts;
  std::vector<symbol> symbols;
  const auto as_symbols = [&](const std::vector<int32_t>& ids) -> std::span<const symbol> {
    symbols.clear();
    append_symbols(symbols, ids, 0, {});
    return symbols;
  };
  for (int64_t i = 0; i < n_conversations; ++i) { // all begin alike and part in the middle of a block
    const auto& p = prompts.emplace_back(conversation(random, system_prompt, n_tokens));
    const sequence_id id{static_cast<uint64_t>(i)};
    pool.open(id);
    pool.extend(id, n_tokens);
    index.add_snapshot("", as_symbols(p).first(p.size() - 1), pool.table(id), 0);
    index.unpin_all();
    pool.release(id);
  }
  int64_t found = 0;
  const auto s = bench::measure([&](int64_t i) {
    found += index.find("", as_symbols(prompts[static_cast<size_t>(i * 7 % n_conversations)])).n_tokens == n_tokens - 1;
    index.unpin_all();
  });
  const double n = static_cast<double>(n_tokens) / static_cast<double>(block_tokens);
  std::printf("%lld,%lld,%.3f,%.3f,%.3f,%.4f,%s\n", static_cast<long long>(n_tokens),
              static_cast<long long>(index.n_nodes()), s.median_us, s.mad_us, s.min_us, s.median_us / n,
              found > 0 ? "hit" : "MISS");
}

} // namespace

int main() {
  std::printf("prompt_tokens,blocks_in_index,median_us,mad_us,min_us,median_us_per_block,result\n");
  for (const int64_t n : {64, 640, 4096, 12700, 65536, 262144}) measure_length(n);
  return 0;
}
