// Sockets by hand: the client must cost less than the server it measures.
#include "bench/serve_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <ctime>
#include <stdexcept>

namespace troupe {
namespace {

using clock_type = std::chrono::steady_clock;

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

struct stream {
  int fd = -1;
  stream_reader reader;
};

} // namespace

load_result run_load(const load_plan& plan) {
  load_result r;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<stream> streams;
  const auto request = to_request("POST", "/v1/chat/completions", plan.body, false);
  for (size_t i = 0; i < static_cast<size_t>(plan.streams); i++) {
    streams.push_back({connect_to(plan.port), stream_reader(plan.pace_per_s, plan.stamped)});
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = i;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &e);
  }
  for (auto& s : streams) send_all(s.fd, request);
  size_t n_open = streams.size(), n_begun = 0;
  bool is_measuring = false, is_cut = false;
  double cpu_before = 0;
  clock_type::time_point begin{}, end{};
  std::vector<char> piece(1 << 16);
  std::array<epoll_event, 256> ready;
  const auto opened = clock_type::now();
  while (n_open > 0 && !is_cut) {
    const int n = ::epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 1000);
    for (int i = 0; i < n; i++) {
      auto& s = streams[ready[static_cast<size_t>(i)].data.u64];
      const auto got = ::recv(s.fd, piece.data(), piece.size(), 0);
      end = clock_type::now();
      const bool had_begun = s.reader.n_tokens() > 0;
      if (got > 0) s.reader.take({piece.data(), static_cast<size_t>(got)}, end, is_measuring ? &r.counts : nullptr);
      n_begun += !had_begun && s.reader.n_tokens() > 0;
      if (got > 0 && !s.reader.has_ended()) continue;
      r.failed += !s.reader.has_ended();
      ::epoll_ctl(epoll, EPOLL_CTL_DEL, s.fd, nullptr);
      n_open--;
      is_cut = is_cut || plan.seconds > 0;
    }
    const auto now = clock_type::now();
    if (!is_measuring && n_begun >= (plan.seconds > 0 ? streams.size() : 1) &&
        between(opened, now) >= plan.warm_seconds) {
      is_measuring = true;
      begin = now;
      cpu_before = plan.pid ? cpu_seconds(plan.pid) : 0;
    }
    is_cut = is_cut || (plan.seconds > 0 && is_measuring && between(begin, now) >= plan.seconds);
    if (n == 0 && between(opened, now) > 120) throw std::runtime_error("no event for too long");
  }
  r.seconds = between(begin, end);
  r.cpu_seconds = plan.pid ? cpu_seconds(plan.pid) - cpu_before : 0;
  for (const auto& s : streams) ::close(s.fd);
  ::close(epoll);
  if (!is_measuring) throw load_too_short("the streams ended before all of them ran");
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
  clockid_t id;
  timespec t{};
  if (::clock_getcpuclockid(pid, &id) != 0 || ::clock_gettime(id, &t) != 0)
    throw std::runtime_error("no process " + std::to_string(pid));
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

int listen_anywhere(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    throw std::runtime_error("cannot listen on 127.0.0.1");
  port = ntohs(at.sin_port);
  return fd;
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
