// Every event is a chunk of its own, so a read of the peer sees what it would see of a server.
#include "bench/bare_writer.h"

#include "bench/serve_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
namespace {

constexpr std::string_view head =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr std::string_view digits = "0123456789abcdefghijklmnopqrstuv";
constexpr int send_buffer_bytes = 256 << 10; // as troupe's outbox_bytes

struct peer {
  int fd = -1;
  size_t at = 0; // in the bytes being written
};

// One event in its chunk, of the size wanted; `text_at`: of its one character.
std::string make_event(size_t size_bytes, size_t& text_at) {
  const std::string front = "data: {\"id\":\"chatcmpl-",
                    middle = "\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"";
  const std::string back = "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
  size_t n_fill = 1;
  std::string out;
  for (;; n_fill++) {
    std::string data = front + std::string(n_fill, 'x') + middle;
    char framing[20];
    const size_t n_data = data.size() + 1 + back.size();
    std::snprintf(framing, sizeof framing, "%zx\r\n", n_data);
    text_at = std::string_view(framing).size() + data.size();
    out = framing + data + "@" + back + "\r\n";
    if (out.size() >= size_bytes) return out;
  }
}

std::vector<peer> welcome(int listener, const bare_plan& plan, std::string_view first) {
  std::vector<peer> peers;
  char request[65536];
  for (int i = 0; i < plan.streams; i++) {
    peer p;
    p.fd = ::accept(listener, nullptr, nullptr);
    const int on = 1;
    ::setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(p.fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
    peers.push_back(p);
  }
  for (const auto& p : peers)
    if (::recv(p.fd, request, sizeof request, 0) <= 0) ::_exit(1);
  for (const auto& p : peers) {
    ::send(p.fd, head.data(), head.size(), MSG_NOSIGNAL);
    ::send(p.fd, first.data(), first.size(), MSG_NOSIGNAL);
  }
  return peers;
}

void write_flat_out(std::vector<peer>& peers, const std::string& bytes, int epoll) {
  for (size_t i = 0; i < peers.size(); i++) {
    epoll_event e{};
    e.events = EPOLLOUT;
    e.data.u64 = i;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, peers[i].fd, &e);
  }
  std::array<epoll_event, 256> ready;
  for (;;) {
    const int n = ::epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < n; i++) {
      auto& p = peers[ready[static_cast<size_t>(i)].data.u64];
      const auto sent = ::send(p.fd, bytes.data() + p.at, bytes.size() - p.at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return;
      if (sent > 0) p.at = (p.at + static_cast<size_t>(sent)) % bytes.size();
    }
  }
}

void write_paced(std::vector<peer>& peers, std::string event, size_t text_at, double per_s, int epoll) {
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, 0);
  epoll_event e{};
  e.events = EPOLLIN;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &e);
  const auto gap_ns = static_cast<int64_t>(1e9 / per_s);
  auto due_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1) + gap_ns;
  uint64_t stamp_us = 0;
  for (int place = 0;; place = (place + 1) % 8, due_ns += gap_ns) {
    itimerspec at{};
    at.it_value.tv_sec = due_ns / 1'000'000'000;
    at.it_value.tv_nsec = due_ns % 1'000'000'000;
    ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, nullptr);
    ::epoll_wait(epoll, &e, 1, -1);
    if (place == 0) {
      stamp_us =
          static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::microseconds(1));
      event[text_at] = '@';
    } else {
      event[text_at] = digits[(stamp_us >> (5 * (7 - place))) & 31];
    }
    for (const auto& p : peers)
      if (::send(p.fd, event.data(), event.size(), MSG_NOSIGNAL) < 0) return;
  }
}

void serve(int listener, const bare_plan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  size_t text_at = 0;
  const std::string event = make_event(plan.event_bytes, text_at);
  auto peers = welcome(listener, plan, event);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  std::string bytes;
  for (int i = 0; i < plan.events_per_write; i++) bytes += event;
  if (plan.pace_per_s > 0)
    write_paced(peers, event, text_at, plan.pace_per_s, epoll);
  else
    write_flat_out(peers, bytes, epoll);
}

} // namespace

bare_writer::bare_writer(const bare_plan& plan) {
  const int listener = listen_anywhere(port);
  pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process for the bare writer");
  if (pid == 0) {
    serve(listener, plan);
    ::_exit(0);
  }
  ::close(listener);
}

bare_writer::~bare_writer() {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

} // namespace troupe
