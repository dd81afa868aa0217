// The invariants of prefix_index, checked by looking at everything: for tests.
#include "actors/prefix_index.h"

#include "storage/check.h"

namespace troupe {

void prefix_index::check_node(const node& n, std::vector<bool>& slots, int64_t& n_disk_bytes) const {
  const auto take = [&](const place& p) {
    if (p.slot >= 0) {
      TROUPE_CHECK(!slots[static_cast<size_t>(p.slot)], "a slot has one owner");
      slots[static_cast<size_t>(p.slot)] = true;
    }
    if (p.in[2]) n_disk_bytes += p.entry_bytes;
    TROUPE_CHECK(p.in[2] == (p.entry != entry_id{}), "what is on disk has an entry");
    TROUPE_CHECK(!p.is_loading || (p.in[1] && p.in[2]), "only what is on disk is read");
  };
  take(n);
  std::array<int32_t, n_tiers> below{};
  for (const auto& [key, child] : n.children) {
    TROUPE_CHECK(!child->is_nowhere() && !(child->in[0] && child->in[1]),
                 "a node is somewhere, on device or in a slot");
    TROUPE_CHECK(!child->in[0] || n.in[0] || !n.parent, "what is on the device has its parent there");
    TROUPE_CHECK(child->in[1] == (child->slot >= 0), "in memory is in a slot");
    for (size_t t = 0; t < n_tiers; ++t) below[t] += child->in[t];
    check_node(*child, slots, n_disk_bytes);
  }
  for (const auto& [key, id] : n.tails) {
    const auto& s = snapshots_.at(id);
    take(s);
    TROUPE_CHECK(!s.is_nowhere() && !(s.in[0] && s.in[1]), "a snapshot is somewhere, hot or warm");
    TROUPE_CHECK(!s.in[0] || n.in[0] || !n.parent, "a hot snapshot has its path on the device");
    TROUPE_CHECK(s.partial.has_value() == (s.in[0] && !key.empty()), "a hot one has its part of a block there");
    TROUPE_CHECK((s.slot >= 0) == (s.in[1] && !key.empty()), "a warm one in a slot");
    for (size_t t = 0; t < n_tiers; ++t) {
      below[t] += s.in[t];
      TROUPE_CHECK(order_[t].count({s.rated(static_cast<tier>(t)), id}) == s.in[t],
                   "each tier's order has what is in it");
    }
  }
  TROUPE_CHECK(below == n.n_below, "what is below is counted");
  for (size_t t = 0; t < n_tiers; ++t)
    TROUPE_CHECK(leaves_[t].count({n.used, const_cast<node*>(&n)}) == (n.in[t] && below[t] == 0), "leaves are listed");
}

void prefix_index::check() const {
  std::vector<bool> slots(static_cast<size_t>(limits_.n_slots));
  int64_t n_disk_bytes = 0, n_memory = 0;
  for (const auto& [salt, top] : roots_) check_node(*top, slots, n_disk_bytes);
  for (const auto& [entry, t] : loads_)
    if (t.is_orphan && t.slot >= 0) slots[static_cast<size_t>(t.slot)] = true;
  for (const auto slot : free_slots_) {
    TROUPE_CHECK(!slots[static_cast<size_t>(slot)], "a free slot has no owner");
    slots[static_cast<size_t>(slot)] = true;
  }
  for (const bool is_known : slots) TROUPE_CHECK(is_known, "no slot is lost");
  for (const auto& [id, s] : snapshots_) n_memory += s.is_in_memory();
  TROUPE_CHECK(n_memory == n_in_memory_ && n_memory <= limits_.max_snapshots,
               "snapshots in memory keep to their number");
  TROUPE_CHECK(n_disk_bytes == disk_bytes_ && disk_bytes_ <= std::max<int64_t>(limits_.disk_bytes, 0),
               "files keep to their bytes");
}

} // namespace troupe
