// Hash ids, and the gated addition of the rows to the residual copies.
#include "model/deepseek_v41/engram.h"

#include "model/deepseek_v41/block.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

namespace troupe::deepseek_v41 {
namespace {

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

// Constants of the released model (engram.md section 3); other configurations carry theirs in the config.
std::vector<std::vector<int64_t>> released_multipliers(const config& c) {
  const engram_config& e = c.engram;
  if (e.layers != std::vector<int32_t>{1, 14} || e.compressed_vocabulary != 99092 || e.max_ngram != 4)
    throw std::runtime_error(c.file + ": engram_multipliers: expected one list for each Engram layer, found nothing");
  return {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
          {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
}

} // namespace

std::vector<std::vector<int64_t>> engram_primes(const engram_config& e) {
  std::vector<std::vector<int64_t>> all;
  std::set<int64_t> seen; // over all layers
  for (size_t slot = 0; slot < e.layers.size(); ++slot) {
    auto& primes = all.emplace_back();
    for (int64_t n = 2; n <= e.max_ngram; ++n) {
      int64_t at = e.vocabulary - 1;
      for (int64_t k = 0; k < e.heads; ++k) {
        do ++at;
        while (!is_prime(at) || seen.contains(at));
        seen.insert(at);
        primes.push_back(at);
      }
    }
  }
  return all;
}

engram_hash::engram_hash(const config& c, int32_t pad)
    : max_ngram_(c.engram.max_ngram), heads_(c.engram.heads), pad_(pad) {
  const engram_config& e = c.engram;
  multipliers_ = e.multipliers.empty() && !e.layers.empty() ? released_multipliers(c) : e.multipliers;
  primes_ = engram_primes(e);
  for (size_t slot = 0; slot < e.layers.size(); ++slot) {
    auto& offsets = offsets_.emplace_back();
    int64_t sum = 0;
    for (const int64_t prime : primes_[slot]) {
      offsets.push_back(sum);
      sum += prime;
    }
    if (sum != e.rows[slot])
      throw std::runtime_error(c.file + ": engram_num_embeddings: expected " + std::to_string(sum) + " for layer " +
                               std::to_string(e.layers[slot]) + ", the sum of its primes, found " +
                               std::to_string(e.rows[slot]));
  }
}

void engram_hash::row_ids(std::span<const int32_t> history, std::span<int64_t> ids) const {
  TROUPE_CHECK(ids.size() == primes_.size() * static_cast<size_t>((max_ngram_ - 1) * heads_), "one id for each column");
  size_t out = 0;
  for (size_t slot = 0; slot < primes_.size(); ++slot) {
    uint64_t x = 0;
    bool blocked = false;
    for (int64_t back = 0; back < max_ngram_; ++back) {
      const auto at = static_cast<int64_t>(history.size()) - 1 - back;
      blocked = blocked || at < 0 || history[static_cast<size_t>(at)] == dead;
      const int32_t id = blocked ? pad_ : history[static_cast<size_t>(at)];
      x ^= static_cast<uint64_t>(id) * static_cast<uint64_t>(multipliers_[slot][static_cast<size_t>(back)]);
      for (int64_t k = 0; back > 0 && k < heads_; ++k) {
        const auto column = static_cast<size_t>((back - 1) * heads_ + k);
        ids[out++] = static_cast<int64_t>(x % static_cast<uint64_t>(primes_[slot][column])) + offsets_[slot][column];
      }
    }
  }
}

void run_engram(step_context& ctx, const engram_weights& w, int32_t slot) {
  const int64_t n = ctx.rows.n, width = w.table.width;
  backend& be = ctx.be;
  const tensor records = ctx.b.records[static_cast<size_t>(slot)].slice(0, n), rows = ctx.b.engram_rows.slice(0, n);
  if (!ctx.b.engram_local) {
    be.dequant_rows(rows, records, w.table.format, width);
  } else { // each rank read its columns: (rank, row) -> (row, rank)
    const int64_t own = ctx.b.engram_local.shape[1], ranks = be.n_ranks();
    const tensor local = ctx.b.engram_local.slice(0, n);
    be.dequant_rows(local, records, w.table.format, width);
    const tensor all(ctx.b.engram_gathered.data, dtype::f32, {ranks, n * own * width});
    be.all_gather(all, local.reshape({n * own * width}));
    be.copy_rows(rows.reshape({n * ranks, own * width}), ctx.b.engram_order.slice(0, n * ranks),
                 all.reshape({ranks * n, own * width}), {});
  }
  const tensor kv = ctx.b.engram_kv.slice(0, n), gates = ctx.b.engram_gates.slice(0, n);
  be.linear(kv.reshape({n, kv.row_elements()}), rows.reshape({n, rows.row_elements()}), *w.wkv);
  be.engram_gate(ctx.h, kv, w.q_weight, w.k_weight, ctx.rows.vl, gates, ctx.c.eps);
  ctx.show("engram_gate", gates);
}

} // namespace troupe::deepseek_v41
