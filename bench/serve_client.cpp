// Sockets by hand: the client must cost less than the server it measures.
#include "bench/serve_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace troupe {
namespace {

using clock_type = std::chrono::steady_clock;
constexpr double step = 1.05; // of gap_counts

double between(clock_type::time_point a, clock_type::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
    ::close(fd);
    throw std::runtime_error("cannot connect to port " + std::to_string(port));
  }
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) throw std::runtime_error("send failed");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string to_request(std::string_view method, std::string_view path, std::string_view body, bool close) {
  std::string out(method);
  out.append(" ").append(path).append(" HTTP/1.1\r\nHost: 127.0.0.1\r\n");
  if (close) out += "Connection: close\r\n";
  if (!body.empty()) out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return out.append("\r\n").append(body);
}

// One stream: counts event ends ("\n\n"; chunk framing never makes two line feeds in a row).
struct stream {
  int fd = -1;
  char last = 0;
  bool ended = false, seen = false;
  uint64_t events = 0;
  clock_type::time_point first, previous;
  std::string tail; // last bytes, to find [DONE]

  uint64_t take(const char* bytes, size_t n) {
    uint64_t found = last == '\n' && n > 0 && bytes[0] == '\n';
    for (const char* p = bytes;
         (p = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(bytes + n - p)))); p++)
      found += p + 1 < bytes + n && p[1] == '\n';
    last = bytes[n - 1];
    tail.append(bytes + (n > 64 ? n - 64 : 0), std::min<size_t>(n, 64));
    if (tail.size() > 128) tail.erase(0, tail.size() - 64);
    ended = tail.find("[DONE]") != std::string::npos;
    return found;
  }
};

void note(stream& s, uint64_t found, clock_type::time_point now, const load_plan& plan, bool measured, load_result& r) {
  if (found == 0) return;
  if (!s.seen) { // the role chunk: it comes when the turn is admitted
    s.seen = true;
  } else {
    if (s.events == 1) s.first = now;
    if (measured && s.events > 1) {
      r.gaps.add(between(s.previous, now) * 1e6);
      if (plan.pace_per_s > 0)
        r.lateness.add((between(s.first, now) - static_cast<double>(s.events - 1) / plan.pace_per_s) * 1e6);
    }
  }
  s.previous = now;
  s.events += found;
  if (measured) {
    r.events += found;
    r.reads++;
  }
}

} // namespace

void gap_counts::add(double us) {
  const double i = us > 1 ? std::log(us) / std::log(step) : 0;
  counts_[std::min(counts_.size() - 1, static_cast<size_t>(i))]++;
  total_++;
  most_ = std::max(most_, us);
}

double gap_counts::at(double part) const {
  const auto want = static_cast<uint64_t>(part * static_cast<double>(total_));
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); i++)
    if ((seen += counts_[i]) > want) return std::min(most_, std::pow(step, static_cast<double>(i + 1)));
  return most_;
}

load_result run_load(const load_plan& plan) {
  load_result r;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<stream> streams(static_cast<size_t>(plan.streams));
  const auto request = to_request("POST", "/v1/chat/completions", plan.body, false);
  for (size_t i = 0; i < streams.size(); i++) {
    streams[i].fd = connect_to(plan.port);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = i;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &e);
  }
  for (auto& s : streams) send_all(s.fd, request);
  size_t n_open = streams.size();
  bool started = false;
  clock_type::time_point begin{}, end{};
  std::vector<char> piece(1 << 16);
  std::array<epoll_event, 64> ready;
  const auto opened = clock_type::now();
  while (n_open > 0) {
    const int n = ::epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 1000);
    const auto now = clock_type::now();
    for (int i = 0; i < n; i++) {
      auto& s = streams[ready[static_cast<size_t>(i)].data.u64];
      const auto got = ::recv(s.fd, piece.data(), piece.size(), 0);
      const uint64_t found = got > 0 ? s.take(piece.data(), static_cast<size_t>(got)) : 0;
      // Measuring starts after the warm-up, or with the first token.
      if (!started && found > 0 && between(opened, now) >= plan.warm_seconds && s.seen) {
        started = true;
        begin = now;
      }
      note(s, found, now, plan, started, r);
      end = now;
      if (got <= 0 || s.ended) {
        r.failed += !s.ended;
        ::epoll_ctl(epoll, EPOLL_CTL_DEL, s.fd, nullptr);
        n_open--;
      }
    }
    if (plan.seconds > 0 && started && between(begin, now) >= plan.seconds) break;
    if (n == 0 && between(opened, now) > 120) throw std::runtime_error("no event for too long");
  }
  r.seconds = between(begin, end);
  for (const auto& s : streams) ::close(s.fd);
  ::close(epoll);
  return r;
}

std::string ask(int port, std::string_view method, std::string_view path, std::string_view body) {
  const int fd = connect_to(port);
  send_all(fd, to_request(method, path, body, true));
  std::string all;
  char piece[16384];
  for (ssize_t n; (n = ::recv(fd, piece, sizeof piece, 0)) > 0;) all.append(piece, static_cast<size_t>(n));
  ::close(fd);
  const size_t head = all.find("\r\n\r\n");
  if (all.compare(0, 12, "HTTP/1.1 200") != 0 || head == std::string::npos)
    throw std::runtime_error(std::string(path) + ": " + all.substr(0, 400));
  return all.substr(head + 4);
}

double cpu_seconds(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  const size_t end = all.rfind(')');
  if (end == std::string::npos) throw std::runtime_error("no process " + std::to_string(pid));
  std::istringstream rest(all.substr(end + 2));
  std::string skipped;
  for (int i = 0; i < 11; i++) rest >> skipped;
  double user = 0, system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

child_server::child_server(const std::string& program, std::vector<std::string> arguments) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  arguments.insert(arguments.begin(), {program, "serve", "--port", "0", "--log-level", "warn"});
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const auto start = clock_type::now();
  pid = ::fork();
  if (pid == 0) {
    ::dup2(out[1], 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out[1]);
  std::string said;
  char piece[4096];
  while (said.find("ready at") == std::string::npos) {
    const auto n = ::read(out[0], piece, sizeof piece);
    if (n <= 0) throw std::runtime_error("the server did not get ready: " + said);
    said.append(piece, static_cast<size_t>(n));
  }
  seconds_to_ready = between(start, clock_type::now());
  port = std::stoi(said.substr(said.find("127.0.0.1:") + 10));
  ::close(out[0]);
}

child_server::~child_server() {
  ::kill(pid, SIGTERM);
  ::waitpid(pid, nullptr, 0);
}

} // namespace troupe
