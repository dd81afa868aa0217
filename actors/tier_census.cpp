// Counting ranks.
#include "actors/tier_census.h"

#include <algorithm>
#include <utility>

namespace troupe {

std::optional<tier_census::found> tier_census::take(tier_listed&& part) {
  for (auto& e : part.entries) {
    auto& s = seen_[e.entry];
    const bool is_same = s.n == 0 || (s.what.parent == e.parent && s.what.n_tokens == e.n_tokens &&
                                      s.what.is_snapshot == e.is_snapshot && s.what.symbols == e.symbols);
    if (s.n == 0)
      s.what = {e.entry, e.parent, e.is_snapshot, e.n_tokens, e.floor, std::move(e.salt), std::move(e.symbols)};
    s.n += is_same ? 1 : -n_ranks_;
  }
  is_open_ = is_open_ && part.is_open;
  if (part.is_last) ++n_listed_;
  if (n_listed_ < n_ranks_) return std::nullopt;
  found out;
  out.pins = std::move(part.pins);
  out.is_open = is_open_;
  for (auto& [entry, s] : seen_) {
    out.next = std::max(out.next, entry_id{static_cast<uint64_t>(entry) + 1});
    if (s.n == n_ranks_)
      out.entries.push_back(std::move(s.what));
    else
      out.strays.push_back(entry);
  }
  seen_.clear();
  std::sort(out.strays.begin(), out.strays.end());
  return out;
}

std::optional<bool> tier_census::take(const tier_result& r) {
  auto& v = votes_[r.entry];
  v.is_done = v.is_done && r.is_done;
  if (++v.n < n_ranks_) return std::nullopt;
  const bool is_done = v.is_done;
  votes_.erase(r.entry);
  return is_done;
}

} // namespace troupe
