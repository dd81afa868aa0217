// Beside the ring: entries of the prefix cache to files and back. What the disk refuses is told, never thrown.
#include "actors/tier_disk.h"

#include "actors/guard.h"
#include "actors/kv_cache.h"
#include "actors/rank.h"
#include "storage/check.h"
#include "storage/parallel.h"
#include "storage/tier_files.h"

#include <caf/all.hpp>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>

namespace troupe {

namespace {

constexpr size_t listed_at_once = 1000; // entries of one message: about half a MiB
constexpr size_t results_at_once = 16;  // kv_cache may hold a step until it hears something
constexpr unsigned most_readers = 4;    // threads; what takes long is a page cache, or a disk that is asked once

struct disk_state {
  static inline const char* name = "tier_disk";
  std::optional<tier_files> files;
  bool is_open = false, is_failing = false;
  unsigned n_readers = 1;
  uint64_t cache = 0;
  rank_actor rank;
  kv_cache_actor kv_cache;
  std::unordered_map<entry_id, std::vector<std::byte>> coming; // pieces so far
};
using tier_disk_pointer = tier_disk_actor::stateful_pointer<disk_state>;

void tell_written(tier_disk_pointer self, entry_id entry, bool is_done) {
  self->send(self->state.kv_cache, tier_done{self->state.cache, {{entry, true, is_done}}});
}

// One a line: the entry's number, then the name.
void write_pins(tier_files& files, const std::vector<tier_pin>& pins) {
  std::string text;
  for (const auto& p : pins) text += std::to_string(static_cast<uint64_t>(p.entry)) + ' ' + p.name + '\n';
  if (const auto why = files.write_note("pins", text)) spdlog::warn("cache on disk: {}", why->what);
}

std::vector<tier_pin> read_pins(tier_files& files) {
  std::vector<tier_pin> out;
  std::istringstream lines(files.read_note("pins"));
  uint64_t entry = 0;
  for (std::string name; lines >> entry && std::getline(lines >> std::ws, name);)
    out.push_back({name, entry_id{entry}});
  return out;
}

void list(tier_disk_pointer self) {
  auto& s = self->state;
  tier_listed out{s.cache, {}, false, s.is_open, {}};
  for (auto& e : s.files->scan()) {
    out.entries.push_back({entry_id{e.id}, entry_id{e.parent}, e.kind == 1, e.n_tokens, e.floor, std::move(e.salt),
                           std::move(e.symbols)});
    if (out.entries.size() < listed_at_once) continue;
    self->send(s.kv_cache, std::move(out));
    out = {s.cache, {}, false, s.is_open, {}};
  }
  out.is_last = true;
  out.pins = read_pins(*s.files);
  self->send(s.kv_cache, std::move(out));
}

void begin(tier_disk_pointer self, const tier_disk_config& config, const tier_wiring& w) {
  auto& s = self->state;
  s.cache = w.cache;
  s.rank = caf::actor_cast<rank_actor>(w.rank);
  s.kv_cache = caf::actor_cast<kv_cache_actor>(w.kv_cache);
  s.coming.clear();
  if (!s.files) {
    s.files.emplace(tier_folder{config.folder / ("rank-" + std::to_string(config.rank)), config.fingerprint,
                                config.rank, config.n_ranks, config.max_bytes / 2});
    const auto why = s.files->open();
    s.is_open = !why;
    if (why) spdlog::error("cache on disk: off: {}", why->what);
  }
  list(self);
}

void write(tier_disk_pointer self, const tier_write& what, std::span<const std::byte> payload, counters& numbers) {
  auto& s = self->state;
  tier_entry e;
  e.id = static_cast<uint64_t>(what.entry);
  e.parent = static_cast<uint64_t>(what.parent);
  e.kind = what.snapshot != snapshot_id{} ? 1 : 0;
  e.n_tokens = what.n_tokens;
  e.floor = what.floor;
  e.salt = what.salt;
  e.symbols = what.symbols;
  e.payload_bytes = static_cast<int64_t>(payload.size());
  const auto why = s.files->write(e, payload);
  if (why) ++numbers.disk_write_errors;
  if (why && !s.is_failing) spdlog::error("cache on disk: no more writes for now: {}", why->what);
  if (!why && s.is_failing) spdlog::info("cache on disk: writes go on");
  s.is_failing = why.has_value();
  if (!why) {
    ++numbers.disk_writes;
    numbers.disk_bytes_written += static_cast<int64_t>(payload.size());
  }
  tell_written(self, what.entry, !why);
}

void take(tier_disk_pointer self, const tier_save& piece, counters& numbers) {
  auto& s = self->state;
  const auto entry = piece.what.entry;
  if (!piece.is_there || !s.is_open) return tell_written(self, entry, false);
  auto& bytes = s.coming[entry];
  TROUPE_CHECK(piece.offset == static_cast<int64_t>(bytes.size()), "pieces of an entry come in order");
  const auto more = std::as_bytes(std::span(piece.bytes));
  bytes.insert(bytes.end(), more.begin(), more.end());
  if (static_cast<int64_t>(bytes.size()) < piece.size_bytes) return;
  write(self, piece.what, bytes, numbers);
  s.coming.erase(entry);
}

// An entry that was read, and why it was not.
struct found_entry {
  std::vector<uint8_t> payload;
  std::optional<tier_error> why;
};

// Whether the rank gets its bytes.
bool send_found(tier_disk_pointer self, const tier_read& where, found_entry&& found, counters& numbers) {
  auto& s = self->state;
  const bool is_there = s.is_open && !found.why;
  const size_t size = found.payload.size();
  if (found.why) {
    ++numbers.disk_read_errors;
  } else if (is_there) {
    ++numbers.disk_reads;
    numbers.disk_bytes_read += static_cast<int64_t>(size);
  }
  tier_arrived out{s.cache, where, static_cast<int64_t>(size), 0, {}};
  if (is_there && size > 0 && size <= piece_bytes) { // as it was read: the rank keeps this very memory
    out.bytes = std::move(found.payload);
    self->send(s.rank, std::move(out));
  } else if (is_there) {
    for (size_t at = 0; at < size; at += piece_bytes) {
      const auto* from = found.payload.data() + at;
      out.offset = static_cast<int64_t>(at);
      out.bytes.assign(from, from + std::min(piece_bytes, size - at));
      self->send(s.rank, out);
    }
  }
  return is_there;
}

// What of an order could not be read: one line, though a prefix is hundreds of files.
struct refused_reads {
  size_t n = 0;
  std::string first;
  void add(const tier_error& why) {
    if (n++ == 0) first = why.what;
  }
  void log() const {
    if (n == 1) spdlog::warn("cache on disk: {}", first);
    if (n > 1) spdlog::warn("cache on disk: {} files could not be read, first {}", n, first);
  }
};

void read_some(tier_disk_pointer self, std::span<const tier_read> reads, refused_reads& refused, counters& numbers) {
  auto& s = self->state;
  std::vector<found_entry> found(reads.size());
  if (s.is_open)
    for_each_parallel(reads.size(), s.n_readers, [&](size_t i) {
      found[i].why = s.files->read(static_cast<uint64_t>(reads[i].entry), found[i].payload);
    });
  tier_done done{s.cache, {}};
  for (size_t i = 0; i < reads.size(); ++i) {
    if (found[i].why) refused.add(*found[i].why);
    const bool is_sent = send_found(self, reads[i], std::move(found[i]), numbers);
    done.results.push_back({reads[i].entry, false, is_sent});
  }
  self->send(s.rank, std::move(done)); // which judges them
}

tier_disk_actor::behavior_type tier_disk_behavior(tier_disk_pointer self, tier_disk_config config,
                                                  std::shared_ptr<counters> numbers, bool detached) {
  guard(self);
  if (detached) self->state.n_readers = std::min(most_readers, n_cores());
  return {
      [=](const tier_wiring& w) { begin(self, config, w); },
      [=](const tier_save& piece) {
        if (piece.cache == self->state.cache) take(self, piece, *numbers);
      },
      [=](const tier_pins& p) {
        if (p.cache == self->state.cache && self->state.is_open) write_pins(*self->state.files, p.pins);
      },
      [=](const tier_orders& orders) {
        auto& s = self->state;
        if (orders.cache != s.cache) return;
        if (s.is_open)
          for (const auto id : orders.removes) s.files->remove(id);
        const std::span reads(orders.reads);
        refused_reads refused;
        for (size_t at = 0; at < reads.size(); at += results_at_once)
          read_some(self, reads.subspan(at, std::min(results_at_once, reads.size() - at)), refused, *numbers);
        refused.log();
      },
  };
}

} // namespace

tier_disk_actor spawn_tier_disk(caf::actor_system& system, tier_disk_config config, std::shared_ptr<counters> numbers,
                                bool detached) {
  if (detached) return system.spawn<caf::detached>(tier_disk_behavior, std::move(config), std::move(numbers), true);
  return system.spawn(tier_disk_behavior, std::move(config), std::move(numbers), false);
}

} // namespace troupe
