// What serving costs: the server layer with the null rank, and the shipped model through the server.
// usage: bench_serve PATH_TO_TROUPE [--only null|model] [--seconds S] [--csv FILE]
// The client runs on the same cores; its own time is not part of "CPU us per token", which is the server process's.
#include "bench/serve_client.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace troupe;

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

void bench_null(report& out, const std::string& program, double per_stream, double seconds) {
  const int streams = 64;
  const child_server server(program, {"--backend", "null", "--null-tokens-per-s", std::to_string(per_stream)});
  load_plan plan;
  plan.port = server.port;
  plan.streams = streams;
  plan.body = endless(16000); // nearly the whole context
  plan.warm_seconds = 0.3;
  plan.pace_per_s = per_stream;
  plan.seconds = per_stream > 0 ? std::min(seconds, 15000 / per_stream - 0.5) : seconds;
  const double before = cpu_seconds(server.pid);
  load_result r = run_load(plan);
  const double used = cpu_seconds(server.pid) - before;
  const std::string name = per_stream > 0
                               ? "null rank, 64 streams at " + std::to_string(static_cast<int>(per_stream)) + "/s each"
                               : std::string("null rank, 64 streams flat out");
  const auto events = static_cast<double>(r.events);
  out.line(name + ": tokens/s", "1/s", events / r.seconds);
  out.line(name + ": server CPU per token", "us", used * 1e6 / events * (r.seconds / (r.seconds + plan.warm_seconds)));
  out.line(name + ": events per read", "1", events / static_cast<double>(std::max<uint64_t>(r.reads, 1)));
  out.line(name + ": gap p50", "ms", r.gaps.at(0.5) / 1e3);
  out.line(name + ": gap p99", "ms", r.gaps.at(0.99) / 1e3);
  out.line(name + ": gap max", "ms", r.gaps.most() / 1e3);
  if (per_stream > 0) out.line(name + ": late p99", "ms", r.lateness.at(0.99) / 1e3);
  if (per_stream > 0) out.line(name + ": late max", "ms", r.lateness.most() / 1e3);
  if (r.failed) out.line(name + ": streams that failed", "1", static_cast<double>(r.failed));
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void bench_decode(report& out, int port, int streams) {
  std::vector<double> rates;
  for (int round = 0; round < 5; round++) {
    load_plan plan;
    plan.port = port;
    plan.streams = streams;
    plan.body = endless(512);
    const auto r = run_load(plan);
    rates.push_back(static_cast<double>(r.events) / r.seconds);
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
  if (argc < 2) {
    std::fputs("usage: bench_serve PATH_TO_TROUPE [--only null|model] [--seconds S] [--csv FILE]\n", stderr);
    return 2;
  }
  std::string only;
  double seconds = 5;
  report out;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
    if (!std::strcmp(argv[i], "--seconds")) seconds = std::stod(argv[i + 1]);
    if (!std::strcmp(argv[i], "--csv")) out.csv.open(argv[i + 1]);
  }
  if (out.csv.is_open()) out.csv << "what,unit,value\n";
  if (only != "model") {
    for (const double per_stream : {0.0, 1000.0, 100.0}) bench_null(out, argv[1], per_stream, seconds);
  }
  if (only != "null") bench_model(out, argv[1]);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_serve: %s\n", e.what());
  return 1;
}
