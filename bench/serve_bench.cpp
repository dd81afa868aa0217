// What serving costs: the server layer with the null rank, and the shipped model through the server.
// The client runs on the same cores; its own time is not part of "CPU per token", which is the server process's. "Added
// latency" is from the stamp that the null rank puts into its tokens to the client's recv; "late" is against the pace.
#include "bench/bare_writer.h"
#include "bench/serve_client.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace troupe;

struct options {
  std::string program, only;
  double seconds = 5; // of each load
  int rounds = 3;     // of which the median counts
  bool stamps = true, bare = true;
  int streams = 0; // not 0: this arm alone
  double per_stream = 0;
};

struct report {
  std::ofstream csv;
  void line(const std::string& what, const std::string& unit, double value) {
    std::printf("%-58s %12.2f %s\n", what.c_str(), value, unit.c_str());
    std::fflush(stdout);
    if (csv.is_open()) csv << what << ',' << unit << ',' << value << '\n';
  }
};

// A chat whose streams end only when they are cut.
std::string endless(int max_tokens) {
  return R"({"messages":[{"role":"user","content":"Tell me a long story."}],"stream":true,"temperature":0,)"
         R"("ignore_eos":true,"chat_template_kwargs":{"thinking":false},"max_tokens":)" +
         std::to_string(max_tokens) + "}";
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// One load on the server layer, and the same on the bare writer.
struct null_arm {
  int streams = 64;
  double per_stream = 0; // tokens a second; 0: flat out
  double total() const { return per_stream * streams; }
  std::string name() const {
    const auto n = std::to_string(streams) + " streams";
    return per_stream > 0 ? n + " at " + std::to_string(std::lround(per_stream)) + "/s each" : n + " flat out";
  }
};

load_plan to_load(const null_arm& arm, double seconds, bool stamped) {
  constexpr double most_tokens = 16000; // nearly the whole context
  load_plan plan;
  plan.streams = arm.streams;
  plan.warm_seconds = arm.per_stream > 0 ? 0.5 : 0;
  plan.seconds = seconds;
  plan.pace_per_s = arm.per_stream;
  plan.stamped = stamped;
  double n_tokens = most_tokens;
  if (arm.per_stream > 0) n_tokens = std::min(most_tokens, 200 + arm.per_stream * (seconds + 2));
  plan.body = endless(static_cast<int>(n_tokens));
  return plan;
}

load_result load_server(const std::string& program, const null_arm& arm, double seconds, bool stamps) {
  std::vector<std::string> arguments{"--backend",     "null", "--null-tokens-per-s", std::to_string(arm.per_stream),
                                     "--max-running", "256"};
  const bool stamped = stamps && arm.per_stream > 0;
  if (stamped) arguments.push_back("--null-stamps");
  constexpr int n_tries = 5; // flat out, the first stream may reach the end of its context before the last one begins
  for (int i = 1;; ++i) {
    const child_server server(program, arguments);
    load_plan plan = to_load(arm, seconds, stamped);
    plan.port = server.port;
    plan.pid = server.pid;
    try {
      return run_load(plan);
    } catch (const load_too_short&) {
      if (i == n_tries) throw;
    }
  }
}

double events_per_write(const load_counts& c) {
  return static_cast<double>(c.tokens) / static_cast<double>(std::max<uint64_t>(c.writes, 1));
}

// Events of the size `ours` had, and no more of them in a write.
load_result load_bare(const null_arm& arm, double seconds, const load_counts& ours) {
  bare_plan bare;
  bare.streams = arm.streams;
  bare.event_bytes = ours.bytes / std::max<uint64_t>(ours.tokens, 1);
  bare.events_per_write = std::max(1, static_cast<int>(events_per_write(ours)));
  bare.pace_per_s = arm.per_stream;
  const bare_writer writer(bare);
  load_plan plan = to_load(arm, seconds, arm.per_stream > 0);
  plan.port = writer.port;
  plan.pid = writer.pid;
  auto r = run_load(plan);
  // Each of its events is a chunk of its own, so its writes do not show.
  r.counts.writes = r.counts.tokens / static_cast<uint64_t>(arm.per_stream > 0 ? 1 : bare.events_per_write);
  return r;
}

struct figures {
  std::vector<double> rate, cpu_us, per_write, latency_p50, latency_p99, gap_p99, gap_most, late_p99;
  uint64_t n_odd = 0, n_failed = 0;
  void add(const load_result& r) {
    const auto& c = r.counts;
    rate.push_back(static_cast<double>(c.tokens) / r.seconds);
    cpu_us.push_back(r.cpu_seconds * 1e6 / static_cast<double>(std::max<uint64_t>(c.tokens, 1)));
    per_write.push_back(events_per_write(c));
    latency_p50.push_back(c.latency.at(0.5) / 1e3);
    latency_p99.push_back(c.latency.at(0.99) / 1e3);
    gap_p99.push_back(c.gaps.at(0.99) / 1e3);
    gap_most.push_back(c.gaps.most() / 1e3);
    late_p99.push_back(c.lateness.at(0.99) / 1e3);
    n_odd += c.odd_tokens;
    n_failed += r.failed;
  }
  void print(report& out, const std::string& name, const null_arm& arm, bool stamped) const {
    out.line(name + ": tokens/s", "1/s", median(rate));
    out.line(name + ": CPU per token", "us", median(cpu_us));
    out.line(name + ": events per write", "1", median(per_write));
    if (stamped) {
      out.line(name + ": added latency p50", "ms", median(latency_p50));
      out.line(name + ": added latency p99", "ms", median(latency_p99));
    }
    out.line(name + ": gap p99", "ms", median(gap_p99));
    out.line(name + ": gap max", "ms", median(gap_most));
    if (arm.per_stream > 0) out.line(name + ": late p99", "ms", median(late_p99));
    if (n_odd) out.line(name + ": events that are not one token", "1", static_cast<double>(n_odd));
    if (n_failed) out.line(name + ": streams that failed", "1", static_cast<double>(n_failed));
  }
};

// Ours and the bare writer take turns. The median CPU per token of ours.
double bench_arm(report& out, const options& o, const null_arm& arm) {
  figures ours, bare;
  for (int round = 0; round < o.rounds; round++) {
    const auto r = load_server(o.program, arm, o.seconds, o.stamps);
    ours.add(r);
    if (o.bare) bare.add(load_bare(arm, o.seconds, r.counts));
  }
  ours.print(out, "null rank, " + arm.name(), arm, o.stamps && arm.per_stream > 0);
  if (o.bare) {
    bare.print(out, "bare epoll writer, " + arm.name(), arm, arm.per_stream > 0);
    out.line("ours of bare, " + arm.name() + ": tokens/s", "%", 100 * median(ours.rate) / median(bare.rate));
    out.line("bare of ours, " + arm.name() + ": CPU per token", "%", 100 * median(bare.cpu_us) / median(ours.cpu_us));
  }
  return median(ours.cpu_us);
}

void bench_null(report& out, const options& o) {
  constexpr double fixed_rate = 20000;
  for (const int streams : {64, 128, 256}) bench_arm(out, o, {streams, 0});
  std::vector<double> cpu_us;
  for (const int streams : {8, 64, 128, 256}) cpu_us.push_back(bench_arm(out, o, {streams, fixed_rate / streams}));
  const auto [least, most] = std::minmax_element(cpu_us.begin(), cpu_us.end());
  out.line("null rank at 20000/s in all, 8 to 256 streams: CPU per token, most of least", "1", *most / *least);
  for (const double per_stream : {1000.0, 100.0}) bench_arm(out, o, {64, per_stream});
}

void bench_decode(report& out, int port, int streams) {
  std::vector<double> rates;
  for (int round = 0; round < 5; round++) {
    load_plan plan;
    plan.port = port;
    plan.streams = streams;
    plan.body = endless(512);
    const auto r = run_load(plan);
    rates.push_back(static_cast<double>(r.counts.tokens) / r.seconds);
  }
  out.line("tiny model, " + std::to_string(streams) + " stream(s), 512 tokens each: decode, median of 5", "tok/s",
           median(rates));
}

void bench_prefill(report& out, int port, int n_tokens) {
  std::vector<double> rates;
  for (int round = 0; round < 5; round++) {
    std::string body = R"({"max_tokens":1,"temperature":0,"prompt":[)";
    for (int i = 0; i < n_tokens; i++) body += (i ? "," : "") + std::to_string(300 + (i * 37 + round) % 500);
    const auto start = std::chrono::steady_clock::now();
    ask(port, "POST", "/v1/completions", body + "]}");
    rates.push_back(n_tokens / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  out.line("tiny model, prompt of " + std::to_string(n_tokens) + ": prefill with one token, median of 5", "tok/s",
           median(rates));
}

void bench_model(report& out, const std::string& program) {
  std::vector<double> starts;
  for (int round = 0; round < 3; round++) starts.push_back(child_server(program, {}).seconds_to_ready);
  out.line("tiny model: start to ready, median of 3", "s", median(starts));
  const child_server server(program, {});
  ask(server.port, "GET", "/ready", "");
  const double before = cpu_seconds(server.pid);
  constexpr double idle = 5;
  std::this_thread::sleep_for(std::chrono::duration<double>(idle));
  out.line("tiny model: CPU while idle", "%", 100 * (cpu_seconds(server.pid) - before) / idle);
  for (const int streams : {1, 8}) bench_decode(out, server.port, streams);
  for (const int n : {2048, 8192}) bench_prefill(out, server.port, n);
}

} // namespace

int main(int argc, char** argv) try {
  options o;
  report out;
  if (argc > 1) o.program = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--only") o.only = value;
    if (name == "--seconds") o.seconds = std::stod(argv[i + 1]);
    if (name == "--rounds") o.rounds = std::max(1, std::stoi(argv[i + 1]));
    if (name == "--bare") o.bare = value != "no";
    if (name == "--stamps") o.stamps = value != "no";
    if (name == "--streams") o.streams = std::stoi(argv[i + 1]);
    if (name == "--per-stream") o.per_stream = std::stod(argv[i + 1]);
    if (name == "--csv") out.csv.open(argv[i + 1]);
  }
  if (o.program.empty()) {
    std::fputs("usage: bench_serve PATH_TO_TROUPE [--only null|model] [--seconds S] [--rounds N] [--csv FILE]\n"
               "       [--bare no] [--streams N [--per-stream TOKENS_PER_S]: one load of the null rank]\n",
               stderr);
    return 2;
  }
  if (out.csv.is_open()) out.csv << "what,unit,value\n";
  if (o.streams > 0) {
    bench_arm(out, o, {o.streams, o.per_stream});
    return 0;
  }
  if (o.only != "model") bench_null(out, o);
  if (o.only != "null") bench_model(out, o.program);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_serve: %s\n", e.what());
  return 1;
}
