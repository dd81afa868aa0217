// Placing a step: what has ended leaves its snapshot, what begins looks for one, what fills a block hands it over.
#include "actors/kv_ledger.h"

#include "storage/check.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

constexpr int64_t n_before = 16;   // tokens for the side tables: more than any looks back on; the reader checks
constexpr int32_t max_fetches = 2; // of one prompt: a broken file costs another look, not a loop
constexpr auto hour = std::chrono::hours(1);
constexpr auto pause_after_failure = std::chrono::minutes(1); // of writes, when a disk has refused one
constexpr size_t max_later = 1024;
constexpr int64_t never = std::numeric_limits<int64_t>::max();

int64_t n_tokens(const planned_rows& r) { return static_cast<int64_t>(r.tokens.size()); }

} // namespace

kv_ledger::kv_ledger(const kv_cache_config& c)
    : config_(c), pool_(c.n_blocks, c.block_tokens),
      index_({c.fingerprint, c.snapshot_bytes > 0 ? c.snapshot_memory_bytes / c.snapshot_bytes : 0, c.n_slots(),
              c.disk_cache_bytes, c.block_bytes, c.snapshot_bytes},
             pool_) {
  TROUPE_CHECK(c.snapshot_interval >= 0 && c.snapshot_slack >= 0, "settings are checked where they are read");
}

int64_t kv_ledger::late_floor(int64_t n_prompt) const {
  return config_.tail_tokens < 0 ? 0 : std::max<int64_t>(n_prompt - config_.tail_tokens, 0);
}

step_placed kv_ledger::place(step_plan&& plan, time now) {
  step_placed placed;
  index_.unpin_all();
  placed.saves_before = std::exchange(late_saves_, {});
  std::vector<snapshot_id> sound = std::exchange(to_write_, {}); // their step has run, or finish() forgets them
  for (auto& [id, s] : sequences_) s.n_before = s.n_done;
  for (const auto& e : plan.ended) finish(e, placed);
  sound.insert(sound.end(), to_write_.begin(), to_write_.end()); // ends of replies: nothing runs before they are saved
  to_write_.clear();
  for (auto& s : plan.started) {
    open(sequence_start(s));
    s.prompt = {}; // the ranks get it row by row
  }
  std::vector<planned_rows> rows;
  rows.reserve(plan.rows.size());
  for (auto& r : plan.rows)
    if (place_rows(r, placed)) rows.push_back(std::move(r));
  plan.rows = std::move(rows);
  write_behind(std::move(sound), now);
  for (const auto& r : plan.rows) save_after(sequences_.at(r.id), r, placed); // no row of this step may find these
  placed.moves = index_.take_moves();
  placed.reads = index_.take_reads();
  placed.writes = index_.take_writes();
  placed.removes = index_.take_removes();
  placed.dropped = index_.take_dropped();
  placed.plan = std::move(plan);
  return placed;
}

// The end of a reply, or of a prefill that was cut short, is where the next turn goes on.
void kv_ledger::finish(const sequence_end& e, step_placed& placed) {
  const auto found = sequences_.find(e.id);
  if (found == sequences_.end()) return; // it ended before its first plan
  auto& s = found->second;
  const int64_t n = std::min(e.n_tokens, s.n_done);
  if (index_.max_snapshots() > 0 && s.has_begun) {
    const auto& salt = s.start.cache_salt;
    const std::span<const symbol> symbols = s.symbols;
    save_wanted(s, n, placed.saves_before);
    if (n < s.n_done) index_.forget(salt, symbols.first(static_cast<size_t>(s.n_done)), n);
    if (n > s.n_hit && s.n_done - n <= config_.snapshot_slack) // what it began with is there
      if (const auto id = index_.add_snapshot(salt, symbols.first(static_cast<size_t>(n)), pool_.table(e.id), s.floor))
        note_saved(s, placed.saves_before.emplace_back(snapshot_save{s.start.slot, n, *id}));
  }
  pool_.release(e.id);
  sequences_.erase(found);
}

void kv_ledger::end_all() {
  step_placed placed;
  placed.saves_before = std::exchange(late_saves_, {}); // two restarts in a row
  std::vector<sequence_end> all;
  for (const auto& [id, s] : sequences_) all.push_back({id, s.start.slot, s.n_before});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const auto& e : all) finish(e, placed);
  late_saves_ = std::move(placed.saves_before);
}

std::vector<sequence_tail> kv_ledger::in_flight() const {
  std::vector<sequence_tail> out;
  for (const auto& [id, s] : sequences_) out.push_back({id, s.start.images, s.recent, s.n_done});
  return out;
}

// Invariant: `recent` ends at n_done, and holds what the side tables look back on from the start of the newest rows.
void kv_ledger::remember(sequence& s, const planned_rows& r) {
  const auto n_fed_again = std::clamp<int64_t>(s.n_done - r.start, 0, static_cast<int64_t>(s.recent.size()));
  s.recent.resize(s.recent.size() - static_cast<size_t>(n_fed_again));
  if (const auto n = static_cast<int64_t>(s.recent.size()); n > n_before)
    s.recent.erase(s.recent.begin(), s.recent.end() - n_before);
  s.recent.insert(s.recent.end(), r.tokens.begin(), r.tokens.end());
}

void kv_ledger::open(sequence_start&& start) {
  const auto id = start.id;
  TROUPE_CHECK(pool_.open(id), "a sequence starts once");
  auto& s = sequences_[id];
  s.start = std::move(start);
  s.floor = late_floor(s.start.n_asked());
  if (index_.max_snapshots() > 0) append_symbols(s.symbols, s.start.prompt, 0, s.start.images);
}

// False: the sequence gets no rows in this step.
bool kv_ledger::place_rows(planned_rows& r, step_placed& placed) {
  auto& s = sequences_.at(r.id);
  if (!s.has_begun) {
    if (!begin(s, r, placed)) return false;
  } else {
    save_wanted(s, r.start, placed.saves_before); // what was guessed in the step before, and came true
    cut(s, r);
    if (!take_blocks(s, r, {}, placed)) return false;
  }
  remember(s, r);
  s.n_done = r.start + n_tokens(r);
  s.n_before = std::min(s.n_before, r.start); // of the step before, guesses that were wrong are fed again in this one
  if (r.start >= s.start.n_prompt && index_.max_snapshots() > 0) {
    s.symbols.resize(static_cast<size_t>(r.start)); // what was rejected is fed again, perhaps with other tokens
    append_symbols(s.symbols, r.tokens, r.start, {});
  }
  return true;
}

bool kv_ledger::awaits_disk(sequence& s) {
  if (is_waiting(s)) return true;
  if (config_.disk_cache_bytes == 0 || s.n_fetches >= max_fetches) return false;
  const auto awaited = index_.fetch(s.start.cache_salt, s.symbols, late_floor(s.start.n_asked()));
  if (!awaited) return false;
  s.awaited = *awaited;
  ++s.n_fetches;
  return true;
}

bool kv_ledger::begin(sequence& s, planned_rows& r, step_placed& placed) {
  prefix_index::hit hit;
  const int64_t n_prompt = s.start.n_prompt, floor = late_floor(s.start.n_asked());
  if (index_.max_snapshots() > 0) {
    if (awaits_disk(s)) return false;
    hit = index_.find(s.start.cache_salt, s.symbols, floor);
    if (has_leader(s, hit.n_tokens)) return false;
    const int64_t n = std::min(n_tokens(r), n_prompt - hit.n_tokens);
    const auto from = s.start.prompt.begin() + hit.n_tokens;
    r.start = hit.n_tokens;
    r.tokens.assign(from, from + n);
    r.samples = r.start + n == n_prompt;
    s.fork = hit.n_common > hit.n_tokens ? hit.n_common : 0;
    s.floor = hit.n_tokens <= floor ? floor : hit.floor;
    cut(s, r);
  }
  if (!take_blocks(s, r, hit, placed)) return false;
  s.has_begun = true;
  s.n_kept = static_cast<int64_t>(hit.blocks.size()) + hit.n_in_memory;
  cached_prefix c{r.id, hit.n_tokens, 0, 0, hit.snapshot, {}, {}};
  (s.n_fetches > 0 ? c.from_disk : c.from_memory) = hit.n_in_memory * config_.block_tokens;
  const auto end = s.start.prompt.begin() + hit.n_tokens;
  c.before.assign(end - std::min(hit.n_tokens, n_before), end);
  s.recent = c.before;
  s.n_done = s.n_before = s.n_hit = s.n_noted = s.n_sure = hit.n_tokens;
  if (s.start.sampling.repetition_penalty != 1) {
    c.seen.assign(s.start.prompt.begin(), end);
    std::sort(c.seen.begin(), c.seen.end());
    c.seen.erase(std::unique(c.seen.begin(), c.seen.end()), c.seen.end());
  }
  placed.cached.push_back(std::move(c));
  s.start.prompt = {}; // its symbols stay
  return true;
}

// Choices of one turn share their prompt: one computes it, the others begin when its snapshot is there. If that one
// goes away, the next takes over.
bool kv_ledger::has_leader(const sequence& s, int64_t n_found) const {
  if (s.start.n_prompt - 1 - n_found < config_.block_tokens) return false; // not worth a step's wait
  return std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
    const sequence& other = entry.second;
    return other.has_begun && other.start.turn == s.start.turn && other.n_before < other.start.n_prompt &&
           other.start.n_prompt == s.start.n_prompt && other.start.cache_salt == s.start.cache_salt &&
           std::equal(s.symbols.begin(), s.symbols.end(), other.symbols.begin());
  });
}

bool kv_ledger::take_blocks(sequence& s, planned_rows& r, const prefix_index::hit& hit, step_placed& placed) {
  const int64_t end = r.start + n_tokens(r);
  if (s.has_begun && pool_.n_missing(r.id, end) == 0) return true; // most rows of a decode
  new_blocks all{r.id, hit.blocks};
  TROUPE_CHECK(pool_.share(r.id, hit.blocks), "the index keeps the blocks that it names");
  bool is_handed_over = false;
  if (!index_.free_blocks(pool_.n_missing(r.id, end)) && hit.partial && !pool_.is_held(*hit.partial)) {
    // No room for a copy: the block itself changes hands, with all that hangs on it.
    pool_.share(r.id, std::span(&*hit.partial, 1));
    index_.surrender(*hit.partial, hit.n_tokens);
    all.blocks.push_back(*hit.partial);
    is_handed_over = true;
  }
  if (!index_.free_blocks(pool_.n_missing(r.id, end))) {
    // What this step copies from or saves of sequences that ended is pinned, and free in the next step.
    TROUPE_CHECK(index_.has_pins(), "the scheduler reserves a sequence's blocks before it starts");
    if (!s.has_begun) {
      pool_.release(r.id);
      pool_.open(r.id);
    }
    return false;
  }
  const auto fresh = pool_.extend(r.id, end);
  TROUPE_CHECK(fresh.has_value(), "the blocks were just made free");
  if (hit.n_tokens > 0 && !is_handed_over) index_.bring_in(hit, *fresh);
  all.blocks.insert(all.blocks.end(), fresh->begin(), fresh->end());
  if (!all.blocks.empty()) placed.blocks.push_back(std::move(all));
  return true;
}

bool kv_ledger::is_wanted(const sequence& s, int64_t n) const {
  return n == s.start.n_prompt - 1 || n == s.fork ||
         (config_.snapshot_interval > 0 && n % config_.snapshot_interval == 0);
}

int64_t kv_ledger::first_wanted(const sequence& s, int64_t above) const {
  int64_t first = never;
  if (config_.snapshot_interval > 0) first = (above / config_.snapshot_interval + 1) * config_.snapshot_interval;
  for (const int64_t n : {s.start.n_prompt - 1, s.fork})
    if (n > above) first = std::min(first, n);
  return first;
}

// A chunk ends where a snapshot is wanted that could not be taken from its end.
void kv_ledger::cut(const sequence& s, planned_rows& r) const {
  if (index_.max_snapshots() == 0 || r.start >= s.start.n_prompt) return;
  const int64_t at = first_wanted(s, r.start), end = r.start + n_tokens(r);
  if (at == never || end - at <= config_.snapshot_slack) return;
  r.tokens.resize(static_cast<size_t>(at - r.start));
  r.samples = false;
}

void kv_ledger::save_after(sequence& s, const planned_rows& r, step_placed& placed) {
  if (index_.max_snapshots() == 0) return;
  const int64_t end = r.start + n_tokens(r);
  const int64_t sure = r.start < s.start.n_prompt ? end : r.start + 1; // the rest are drafts
  const auto table = pool_.table(r.id);
  const std::span<const symbol> symbols = s.symbols;
  if (sure / config_.block_tokens > s.n_kept) {
    index_.commit(s.start.cache_salt, symbols.first(static_cast<size_t>(sure)), table);
    s.n_kept = sure / config_.block_tokens;
  }
  save_wanted(s, sure, placed.saves_after);
}

// Of the positions that became sure, up to `sure`, those where a snapshot is wanted, and which the slot is not too far
// ahead of.
void kv_ledger::save_wanted(sequence& s, int64_t sure, std::vector<snapshot_save>& saves) {
  if (index_.max_snapshots() == 0) return;
  for (int64_t n = std::max(s.n_sure, s.n_done - config_.snapshot_slack - 1) + 1; n <= sure; ++n) {
    if (!is_wanted(s, n)) continue;
    const auto symbols = std::span<const symbol>(s.symbols).first(static_cast<size_t>(n));
    const auto id = index_.add_snapshot(s.start.cache_salt, symbols, pool_.table(s.start.id), s.floor);
    if (!id) continue;
    saves.push_back({s.start.slot, n, *id});
    if (n == s.start.n_prompt - 1 || pays_on_disk(s, n)) note_saved(s, saves.back());
  }
  s.n_sure = std::max(s.n_sure, sure);
}

// Ends of prompts and of replies go to disk: that is where the next turn begins. One between them is for forks, and for
// a prompt that a crash cuts short. It goes when the blocks since the last one are as many bytes as it is: so forks
// lose little, and the files are at most twice as large as blocks alone would be.
bool kv_ledger::pays_on_disk(const sequence& s, int64_t n_tokens) const {
  return (n_tokens - s.n_noted) * config_.block_bytes >= config_.snapshot_bytes * config_.block_tokens;
}

void kv_ledger::note_saved(sequence& of, const snapshot_save& s) {
  if (config_.disk_cache_bytes == 0 || s.n_tokens < config_.disk_min_tokens) return;
  of.n_noted = s.n_tokens;
  to_write_.push_back(s.snapshot);
}

void kv_ledger::write_behind(std::vector<snapshot_id>&& snapshots, time now) {
  if (config_.disk_cache_bytes == 0) return;
  later_.insert(later_.end(), snapshots.begin(), snapshots.end());
  if (!can_write_ || now < no_writes_before_) {
    if (later_.size() > max_later) later_.erase(later_.begin(), later_.end() - max_later);
    return;
  }
  if (now - hour_began_ >= hour) {
    hour_began_ = now;
    n_written_in_hour_ = 0;
  }
  size_t n = 0;
  for (; n < later_.size(); ++n) {
    if (index_.writing_bytes() >= config_.disk_queue_bytes) break;
    if (n_written_in_hour_ >= config_.disk_bytes_per_hour) break;
    n_written_in_hour_ += index_.write(later_[n]);
  }
  later_.erase(later_.begin(), later_.begin() + static_cast<std::ptrdiff_t>(n));
}

bool kv_ledger::must_wait(const step_plan& plan) const {
  if (plan.rows.empty() || !plan.started.empty() || !plan.ended.empty() || plan.ends_resume || !late_saves_.empty())
    return false;
  return std::all_of(plan.rows.begin(), plan.rows.end(),
                     [&](const auto& r) { return is_waiting(sequences_.at(r.id)); });
}

void kv_ledger::read_done(entry_id entry, bool ok) { index_.read_done(entry, ok); }

void kv_ledger::write_done(entry_id entry, bool ok, time now) {
  index_.write_done(entry, ok);
  if (!ok) no_writes_before_ = now + pause_after_failure;
}

void kv_ledger::restore(std::vector<prefix_index::stored> found, std::span<const entry_id> strays, entry_id next,
                        const std::vector<std::pair<std::string, entry_id>>& pins) {
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.n_tokens, a.is_snapshot, a.entry) < std::tuple(b.n_tokens, b.is_snapshot, b.entry);
  });
  for (const auto& e : found) index_.restore(e);
  index_.end_restore();
  for (const auto id : strays) index_.discard(id);
  for (const auto& [name, entry] : pins) index_.pin_restored(name, entry);
  index_.first_entry(next);
  can_write_ = true;
}

std::optional<std::string> kv_ledger::pin(const std::string& name, const miss_question& what) {
  if (name.empty() || name.find('\n') != std::string::npos) return "a pin's name is one line of text";
  std::vector<symbol> symbols;
  append_symbols(symbols, what.prompt, 0, what.images);
  auto refused = index_.pin_name(name, what.cache_salt, symbols);
  for (const auto& p : index_.pins())
    if (!refused && p.name == name && p.entry == entry_id{} && config_.disk_cache_bytes > 0)
      later_.push_back(p.snapshot);
  return refused;
}

miss_answer kv_ledger::explain(const miss_question& q) const {
  std::vector<symbol> symbols;
  append_symbols(symbols, q.prompt, 0, q.images);
  const auto m = index_.explain(q.cache_salt, symbols);
  static constexpr const char* names[] = {"nothing", "block", "evicted", "snapshot", "salt", "disk"};
  return {static_cast<int64_t>(symbols.size()), m.n_cached, m.first_differing, names[static_cast<size_t>(m.what)]};
}

} // namespace troupe
