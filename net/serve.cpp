// The verb serve: bind, load behind the open port, serve until told to stop, drain.
#include "net/verbs.h"

#include "actors/system.h"
#include "net/server.h"
#include "storage/log.h"

#include <caf/all.hpp>
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace troupe {
namespace {

constexpr int exit_done = 0, exit_refused = 2, exit_cut_short = 3, exit_may_heal = 70; // design section 1
constexpr auto last_bytes = std::chrono::seconds(2); // for answers already made, after the drain
constexpr int stop_grace_s = 15;                     // above the drain timeout, before the process is ended by force
constexpr auto same_stop = std::chrono::seconds(1);  // a signal so soon after the first one is the same wish to stop

// Blocks the signals in this thread and all it starts; they are taken with sigwait.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return set;
}

// Sockets are files too: take as many as this process may have.
void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void say_ready(const server& listener) {
  const auto url = listener.url();
  say(fmt::format("troupe: ready at {}\ntry:  curl -N {}/v1/chat/completions -H 'Content-Type: application/json' -d "
                  "'{{\"messages\":[{{\"role\":\"user\",\"content\":\"What is 17*19?\"}}],\"stream\":true}}'",
                  url, url));
}

// Ends the process if stopping takes longer than it may, or if the operator asks a second time.
void watch_stop(sigset_t set, int limit_s) {
  using clock = std::chrono::steady_clock;
  sigdelset(&set, SIGUSR1);
  std::thread([set, began = clock::now(), until = clock::now() + std::chrono::seconds(limit_s)] {
    int signal = 0;
    for (auto now = began; now < until && signal <= 0; now = clock::now()) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - now).count();
      const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
      signal = sigtimedwait(&set, nullptr, &limit);
      if (clock::now() - began < same_stop) signal = 0; // a supervisor and its group may both tell
    }
    spdlog::error(signal > 0 ? "stop: told twice, leaving at once" : "stop: took too long, leaving");
    std::fflush(nullptr);
    std::_Exit(exit_cut_short);
  }).detach();
}

class loading {
public:
  // Loads on a thread of its own; a failure sends SIGUSR1 to the process.
  loading(runtime& engine, server& listener, caf::actor_system& system, counters& numbers)
      : thread_([this, &engine, &listener, &system, &numbers] {
          try {
            engine.load();
            listener.attach(to_engine_port(system, engine.parts()));
            done_ = true;
            say_ready(listener);
          } catch (const std::exception& e) {
            numbers.now = phase::failed;
            std::fprintf(stderr, "troupe: %s\n", e.what());
            failed_ = true;
            ::kill(::getpid(), SIGUSR1);
          }
        }) {}
  bool done() const { return done_; }
  bool failed() const { return failed_; }
  void join() { thread_.join(); }

private:
  std::atomic<bool> done_{false}, failed_{false};
  std::thread thread_;
};

} // namespace

int run_serve(const loaded_config& config, const std::string& version) {
  const settings& s = config.values;
  start_log(s.log_level);
  for (const auto& w : config.warnings) spdlog::warn("config: {}", w);
  const sigset_t signals = block_signals();
  raise_open_files();
  const auto numbers = std::make_shared<counters>();
  std::unique_ptr<server> listener;
  try {
    listener = std::make_unique<server>(s, numbers, version);
  } catch (const std::system_error& e) {
    std::fprintf(stderr, "troupe: %s\n", e.what());
    return exit_refused;
  }
  say(fmt::format("troupe {}: listening on {}, loading", version, listener->url()));

  caf::actor_system_config caf_config;
  configure(caf_config);
  caf::actor_system system(caf_config);
  runtime engine(system, s, numbers, [](const std::string&) { ::kill(::getpid(), SIGUSR1); });
  loading load(engine, *listener, system, *numbers);
  int signal = 0;
  do { // SIGUSR1 is how a failed load or engine wakes this thread; from outside it means nothing
    sigwait(&signals, &signal);
  } while (signal == SIGUSR1 && !load.failed() && numbers->now != phase::failed);
  if (!load.done() && !load.failed()) { // weights are being read: nothing is in flight, nothing is lost
    spdlog::info("stopped while loading");
    std::fflush(nullptr);
    std::_Exit(exit_done);
  }
  load.join();
  watch_stop(signals, s.drain_timeout_s + stop_grace_s);
  listener->begin_drain();
  const bool failed = load.failed(), has_died = !failed && numbers->now == phase::failed;
  if (has_died)
    spdlog::error("stop: the engine has failed, a restart of the process may heal it");
  else if (!failed)
    spdlog::info("stop: finishing what is in flight (at most {} s)", s.drain_timeout_s);
  const bool all_ended = failed || engine.drain(std::chrono::seconds(s.drain_timeout_s));
  const bool all_sent = listener->stop(last_bytes);
  engine.stop(); // lets go of every sink, and with it of the sockets
  listener.reset();
  if (failed) return exit_refused;
  if (has_died) return exit_may_heal;
  spdlog::info("stopped{}", all_ended && all_sent ? "" : ", some turns were cut short");
  return all_ended && all_sent ? exit_done : exit_cut_short;
}

} // namespace troupe
