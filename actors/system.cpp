// Start order: what the files say, the text side, ranks in parallel on their own threads, a warm-up step, ready.
#include "actors/system.h"

#include "actors/fingerprint.h"
#include "actors/hand_over.h"
#include "actors/null_text.h"
#include "actors/ring.h"
#include "actors/supervisor.h"
#include "actors/system_check.h"
#include "actors/system_device.h"
#include "actors/warm_up.h"
#include "gpu/backend.h"
#include "gpu/collective.h"
#include "gpu/cuda_backend.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

namespace troupe {
namespace {

namespace fs = std::filesystem;
constexpr auto collective_deadline = std::chrono::seconds(60);
constexpr auto warm_up_deadline = std::chrono::minutes(10);
constexpr auto stop_deadline = std::chrono::seconds(5);
constexpr auto answer_deadline = std::chrono::seconds(5);
constexpr auto list_deadline = std::chrono::seconds(5);
constexpr auto flush_deadline = std::chrono::seconds(10); // of what is on its way to disk
constexpr int32_t n_prepare_threads = 2;
constexpr int64_t short_context = 1024;         // tokens; of the line that says how many are kept
constexpr int64_t draft_trial_tokens = 12;      // for each depth: three trial rounds that accept up to four tokens
constexpr int32_t measured_sizes[] = {2, 4, 8}; // sequences beside each other whose costs are measured at start
constexpr auto measuring_time = std::chrono::milliseconds(150); // after it no larger size is begun
// `--backend null` says this, over and over.
constexpr std::string_view null_line =
    "The troupe rehearses this line so that you can measure how fast it is carried. ";

std::string reason(const caf::error& e) {
  const auto& context = e.context();
  if (context.size() > 0 && context.match_element<std::string>(0)) return context.get_as<std::string>(0);
  return caf::to_string(e);
}

cache_form caches_of(const settings& s) { return s.backend == "cuda" ? cuda_caches : host_caches; }

} // namespace

void configure(caf::actor_system_config& config, int32_t n_threads) {
  config.add_message_types<caf::id_block::troupe_ring>();
  config.add_message_types<caf::id_block::troupe_tiers>();
  use_hand_over(config);
  config.set("scheduler.max-threads", static_cast<size_t>(n_threads));
  config.set("scheduler.max-throughput", size_t{300});
}

std::string shipped_model() {
  std::error_code none;
  const fs::path binary = fs::read_symlink("/proc/self/exe", none);
  const std::vector<fs::path> places{
      binary.parent_path() / "../etc/models/tiny",
      binary.parent_path() / "../share/troupe/models/tiny",
#ifdef TROUPE_SOURCE_DIR
      fs::path(TROUPE_SOURCE_DIR) / "etc/models/tiny",
#endif
  };
  std::string looked;
  for (const auto& place : places) {
    if (fs::exists(place / "config.json", none)) return fs::canonical(place, none).string();
    looked += (looked.empty() ? "" : ", ") + place.lexically_normal().string();
  }
  throw std::runtime_error("no model given and the shipped one is not at " + looked);
}

struct runtime::impl {
  impl(caf::actor_system& s, settings c, std::shared_ptr<counters> n)
      : system(s), numbers(std::move(n)), folder(c.model.empty() ? shipped_model() : c.model) {
    parts.config = std::move(c);
    parts.numbers = numbers;
    parts.config.backend = choose_backend(parts.config.backend); // the fingerprint and the log name what computes
    parts.info = read_model_info(folder);
    parts.fingerprint = make_fingerprint(folder, parts.config);
  }

  bool is_null() const { return parts.config.backend == "null"; }
  bool drafts() const { return !is_null() && parts.info.has_draft && parts.config.spec == "dspark"; }
  int32_t n_ranks() const { return is_null() ? 1 : parts.config.ranks; }
  batch_limits plan_limits() const;
  ring_config plan_ring(const batch_limits&);
  kv_cache_config plan_prefix_cache() const;
  rank_parts make_rank(int32_t rank, const batch_limits&);
  void load_parts();
  void warm_up(const batch_limits&);
  void await_list();

  caf::actor_system& system;
  std::shared_ptr<counters> numbers; // also held by net
  std::string folder;
  front parts;
  ring engine;
  supervisor_actor supervisor;
  std::function<void(const std::string&)> failed;
  std::vector<std::unique_ptr<collective>> group; // until each rank takes its own; anew for each restart of the ranks
  std::vector<std::atomic<double>> loaded;        // part of each rank's weights
  bool is_loaded = false, is_stopped = false;
};

batch_limits runtime::impl::plan_limits() const {
  const auto& c = parts.config;
  const int64_t context = c.max_context > 0 ? std::min(c.max_context, parts.info.context) : parts.info.context;
  const auto bytes = plan_state(folder, caches_of(c));
  batch_limits limits;
  limits.max_running = c.max_running;
  limits.max_queue = c.max_queue;
  limits.max_wait_s = c.max_queue_wait_s;
  limits.chunk_tokens = c.chunk_tokens;
  limits.max_gap_ms = c.max_gap_ms;
  limits.overcommit = c.overcommit;
  limits.block_tokens = parts.info.block_tokens;
  limits.eos = parts.info.eos;
  if (drafts()) limits.drafts = {parts.info.draft_block, c.draft_tokens, c.draft_depth == "adaptive"};
  const int64_t of_context = (context + limits.block_tokens - 1) / limits.block_tokens;
  const int64_t room = (c.kv_memory_bytes - bytes.per_slot * c.max_running) / std::max<int64_t>(bytes.per_block, 1);
  limits.n_blocks = std::min(room, of_context * c.max_running); // more could never be used
  if (limits.n_blocks < 1)
    throw std::runtime_error("kv_memory_bytes: " + std::to_string(c.kv_memory_bytes) +
                             " is too small: " + std::to_string(c.max_running) + " sequences (max_running) need " +
                             std::to_string(bytes.per_slot * c.max_running) + " and each " +
                             std::to_string(limits.block_tokens) + " tokens " + std::to_string(bytes.per_block));
  return limits;
}

rank_parts runtime::impl::make_rank(int32_t rank, const batch_limits& limits) {
  const auto& c = parts.config;
  rank_parts p;
  if (!group.empty()) p.group = std::move(group[static_cast<size_t>(rank)]);
  p.device = make_device(c, rank, n_ranks(), p.group.get());
  model_options o;
  o.folder = folder;
  o.max_sequences = limits.max_running;
  o.n_blocks = limits.n_blocks;
  o.max_rows = limits.max_rows_and_drafts();
  o.prefill = c.prefill == "tail" ? prefill_mode::tail : prefill_mode::exact;
  o.tail_tokens = c.tail_tokens;
  o.load_draft = drafts();
  o.load_vision = parts.info.has_vision;
  p.weights = load_model(*p.device, o, [this, rank](const char*, double part) {
    loaded[static_cast<size_t>(rank)] = part;
    double sum = 0;
    for (const auto& l : loaded) sum += l;
    numbers->progress = sum / static_cast<double>(loaded.size());
  });
  if (c.backend == "cuda") {
    check_kernels(*p.device, *numbers);
    p.weights->capture_steps(c.cuda_graph_rows); // of the kernels that are left in use
  }
  return p;
}

kv_cache_config runtime::impl::plan_prefix_cache() const {
  const auto& c = parts.config;
  const auto bytes = plan_state(folder, caches_of(c));
  kv_cache_config prefix;
  prefix.snapshot_bytes = bytes.per_snapshot;
  prefix.snapshot_memory_bytes = c.snapshot_memory_bytes;
  prefix.snapshot_interval = c.snapshot_interval;
  prefix.snapshot_slack = drafts() ? bytes.draft_slack : bytes.snapshot_slack;
  prefix.tail_tokens = c.prefill == "tail" ? c.tail_tokens : -1;
  prefix.fingerprint =
      make_cache_fingerprint(parts.fingerprint, folder, {caches_of(c), bytes.per_block, bytes.per_snapshot, drafts()});
  prefix.block_bytes = bytes.per_block;
  prefix.host_cache_bytes = c.host_cache_bytes;
  if (!c.disk_cache_dir.empty()) prefix.disk_cache_bytes = c.disk_cache_bytes;
  prefix.disk_min_tokens = c.disk_cache_min_tokens;
  prefix.disk_bytes_per_hour = c.disk_write_bytes_per_hour;
  if (prefix.disk_cache_bytes > 0 && prefix.n_slots() == 0)
    spdlog::warn("disk_cache_dir: what is on disk comes back through host_cache_mb, which holds no block");
  return prefix;
}

ring_config runtime::impl::plan_ring(const batch_limits& limits) {
  ring_config config;
  config.limits = limits;
  config.n_ranks = n_ranks();
  if (is_null()) {
    const auto& words = *parts.text->words();
    config.null = null_rank_config{words.encode_plain(null_line), parts.config.null_tokens_per_s};
    if (parts.config.null_stamps)
      for (const char c : stamp_alphabet)
        for (const auto id : words.encode_plain({&c, 1})) config.null->stamps.push_back(id);
    return config;
  }
  config.prefix = plan_prefix_cache();
  const auto& c = parts.config;
  if (!c.disk_cache_dir.empty())
    config.disk = tier_disk_config{c.disk_cache_dir, config.prefix.fingerprint, 0, n_ranks(), c.disk_cache_bytes};
  if (n_ranks() > 1) config.begin_group = [this] { group = make_host_collectives(n_ranks(), collective_deadline); };
  loaded = std::vector<std::atomic<double>>(static_cast<size_t>(n_ranks()));
  const auto suppressed = parts.text->suppressed_ids();
  config.suppressed.assign(suppressed.begin(), suppressed.end());
  config.make_rank = [this, limits](int32_t rank) { return make_rank(rank, limits); };
  config.open_tables = [this, limits](int32_t rank) {
    return open_tables(folder, rank, n_ranks(), limits.max_running, parts.config.engram_cache_bytes);
  };
  return config;
}

// Every rank and table reader at once, each on its own thread.
void runtime::impl::load_parts() {
  caf::scoped_actor self{system};
  std::string failure;
  const auto on_error = [&](const caf::error& e) {
    if (failure.empty()) failure = reason(e);
  };
  std::vector<std::function<void()>> answers;
  const auto ask = [&](const auto& who) {
    auto pending = std::make_shared<decltype(self->request(who, caf::infinite, load_atom_v))>(
        self->request(who, caf::infinite, load_atom_v));
    answers.push_back([&, pending] { pending->receive([](bool) {}, on_error); });
  };
  for (const auto& r : engine.ranks) ask(r);
  for (const auto& e : engine.engram_fetches) ask(e);
  for (auto& answer : answers) answer();
  if (!failure.empty()) throw std::runtime_error(failure);
}

void runtime::impl::warm_up(const batch_limits& limits) {
  const auto n = std::min<int64_t>({limits.chunk_tokens, limits.block_tokens + 1, parts.max_context - 2});
  const std::vector<int32_t> prompt(static_cast<size_t>(std::max<int64_t>(n, 1)), parts.info.bos);
  int64_t n_tokens = 2; // a prefill and a decode
  if (limits.drafts.is_adaptive && limits.drafts.max_drafts > 0)
    n_tokens = draft_trial_tokens * (limits.drafts.block + 1);
  n_tokens = std::clamp<int64_t>(parts.max_context - n, 1, n_tokens);
  const auto began = std::chrono::steady_clock::now();
  run_warm_up(engine, {prompt, n_tokens, 1}, warm_up_deadline);
  for (const int32_t size : measured_sizes) {
    const bool fits = size <= limits.max_running && size * (n + n_tokens) <= limits.n_blocks * limits.block_tokens;
    if (n_tokens <= 2 || !fits || std::chrono::steady_clock::now() - began > measuring_time) break;
    run_warm_up(engine, {prompt, n_tokens, size}, warm_up_deadline);
  }
  numbers->forget_traffic();
}

// Hits begin when the disks are listed; a large one may take longer than a start should.
void runtime::impl::await_list() {
  if (parts.config.disk_cache_dir.empty() || is_null()) return;
  caf::scoped_actor self{system};
  self->request(engine.kv_cache, list_deadline, flush_atom_v)
      .receive([](bool) {}, [](const caf::error&) { spdlog::info("cache on disk: still being listed"); });
}

runtime::runtime(caf::actor_system& system, settings values, std::shared_ptr<counters> numbers,
                 std::function<void(const std::string&)> failed)
    : impl_(std::make_unique<impl>(system, std::move(values), std::move(numbers))) {
  impl_->failed = std::move(failed);
}

runtime::~runtime() { stop(); }

void runtime::load() {
  try {
    load_all();
  } catch (...) {
    impl_->numbers->now = phase::failed;
    throw;
  }
}

void runtime::load_all() {
  auto& i = *impl_;
  i.numbers->now = phase::weights;
  i.parts.text = load_text_side(i.folder);
  const auto limits = i.plan_limits();
  const int64_t context = i.parts.config.max_context > 0 ? std::min(i.parts.config.max_context, i.parts.info.context)
                                                         : i.parts.info.context;
  i.parts.max_context = std::min(context, limits.n_blocks * limits.block_tokens);
  if (i.parts.max_context < context)
    spdlog::warn("context: {} of {} tokens, limited by kv_memory_bytes", i.parts.max_context, context);
  const auto config = i.plan_ring(limits);
  i.engine = spawn_ring(i.system, config, i.parts.text, i.numbers);
  i.load_parts();
  wire(i.engine);
  i.supervisor = spawn_supervisor(i.system, config, i.engine, i.parts.text, i.numbers, i.failed);
  i.parts.journal = i.engine.journal;
  i.parts.prepare = spawn_prepare(i.system, {i.parts.config, i.parts.info, i.parts.max_context, i.numbers},
                                  i.parts.text, n_prepare_threads);
  i.numbers->now = phase::warm_up;
  i.numbers->progress = 0;
  i.warm_up(limits);
  i.await_list();
  i.numbers->progress = 1;
  i.engine = {}; // the supervisor's from now on: what dies is replaced there
  i.is_loaded = true;
  i.numbers->now = phase::ready;
  spdlog::info("engine: {} ({}), {} ranks, context {}, {} KV blocks of {} tokens, {} sequences", i.parts.info.name,
               i.parts.config.backend, i.n_ranks(), i.parts.max_context, limits.n_blocks, limits.block_tokens,
               limits.max_running);
  if (!i.is_null())
    spdlog::info("prefix cache: keeps {} contexts of {} tokens, {} of {}, each with a reply",
                 config.prefix.n_contexts(short_context), short_context, config.prefix.n_contexts(i.parts.max_context),
                 i.parts.max_context);
}

const front& runtime::parts() const {
  TROUPE_CHECK(impl_->is_loaded, "parts() comes after load()");
  return impl_->parts;
}

wiring runtime::who() const {
  TROUPE_CHECK(impl_->is_loaded, "who() comes after load()");
  caf::scoped_actor self{impl_->system};
  wiring out;
  self->request(impl_->supervisor, answer_deadline, wiring_atom_v)
      .receive([&](wiring& w) { out = std::move(w); },
               [](const caf::error& e) { throw std::runtime_error("the supervisor does not answer: " + reason(e)); });
  return out;
}

// What is on its way to disk arrives.
void runtime::flush() {
  try {
    const auto kv_cache = caf::actor_cast<kv_cache_actor>(who().kv_cache);
    caf::scoped_actor self{impl_->system};
    self->request(kv_cache, flush_deadline, flush_atom_v)
        .receive([](bool) {}, [](const caf::error& e) { throw std::runtime_error(reason(e)); });
  } catch (const std::runtime_error& e) { spdlog::warn("cache on disk: not all of it was written: {}", e.what()); }
}

bool runtime::drain(std::chrono::seconds deadline) {
  auto& i = *impl_;
  if (!i.is_loaded) return true;
  if (i.numbers->now != phase::failed) i.numbers->now = phase::draining;
  caf::scoped_actor self{i.system};
  bool all_ended = false;
  const auto ignore = [](const caf::error&) {};
  self->request(i.supervisor, deadline, drain_begin{}).receive([&](bool ok) { all_ended = ok; }, ignore);
  if (!all_ended) self->request(i.supervisor, answer_deadline, drain_begin{true, {}}).receive([](bool) {}, ignore);
  if (!i.parts.config.disk_cache_dir.empty() && i.numbers->now != phase::failed) flush();
  return all_ended;
}

void runtime::stop() {
  auto& i = *impl_;
  if (std::exchange(i.is_stopped, true)) return;
  caf::scoped_actor self{i.system};
  std::vector<caf::actor> actors;
  if (i.supervisor)
    actors.push_back(caf::actor_cast<caf::actor>(i.supervisor)); // ends the ring
  else if (i.engine.scheduler)
    actors = i.engine.all();
  if (i.parts.prepare) actors.push_back(caf::actor_cast<caf::actor>(i.parts.prepare));
  size_t n_left = actors.size();
  for (const auto& a : actors) {
    self->monitor(a);
    self->send_exit(a, caf::exit_reason::user_shutdown);
  }
  const auto until = std::chrono::steady_clock::now() + stop_deadline;
  bool is_late = false;
  while (n_left > 0 && !is_late) {
    const auto rest = std::max(until - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
    self->receive([&](const caf::down_msg&) { --n_left; }, caf::after(rest) >> [&] { is_late = true; });
  }
  if (is_late) spdlog::error("stop: {} actors did not end in time", n_left);
  i.engine = {};
  i.supervisor = nullptr;
  i.parts.journal = nullptr;
  i.parts.prepare = nullptr;
}

} // namespace troupe
