// Non-blocking sockets; what does not fit now is tried in the next round.
#include "tests/net/rude_client.h"

#include "tests/net/live_engine.h"
#include "tests/net/raw_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace troupe {

rude_client::rude_client(uint16_t port, rude_plan plan)
    : plan_(std::move(plan)), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int small = 4096;
  if (!plan_.reads) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) throw std::runtime_error("cannot connect");
  ::fcntl(fd_, F_SETFL, O_NONBLOCK);
  plan_.n_sent = std::min(plan_.n_sent, plan_.request.size());
}

rude_client::~rude_client() {
  if (fd_ >= 0) ::close(fd_);
}

void rude_client::leave() {
  if (plan_.how == rude_plan::way::half && n_linger_ == 0) {
    ::shutdown(fd_, SHUT_WR);
    n_linger_ = 1;
    return;
  }
  if (plan_.how == rude_plan::way::reset) {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }
  ::close(fd_);
  fd_ = -1;
}

bool rude_client::step() {
  if (fd_ < 0) return false;
  if (n_sent_ < plan_.n_sent) {
    const auto n = ::send(fd_, plan_.request.data() + n_sent_, plan_.n_sent - n_sent_, MSG_NOSIGNAL);
    if (n > 0) n_sent_ += static_cast<size_t>(n);
  }
  if (plan_.reads) {
    char piece[16384];
    const auto n = ::recv(fd_, piece, sizeof piece, 0);
    if (n > 0) in_.append(piece, static_cast<size_t>(n));
    ended_ = ended_ || n == 0;
  }
  if (n_linger_ > 0) {
    if (++n_linger_ > 20 || ended_) {
      plan_.how = rude_plan::way::close;
      leave();
    }
    return fd_ >= 0;
  }
  const bool is_sent = n_sent_ == plan_.n_sent;
  if ((is_sent && in_.size() >= plan_.n_read && plan_.n_read > 0) || ++n_rounds_ > plan_.n_rounds || ended_) leave();
  return fd_ >= 0;
}

namespace {

constexpr std::string_view rude_tools =
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}}])";

std::string rude_chat(std::string_view more) {
  return http_post("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"hi"}],"temperature":0,"max_tokens":600)" +
                       std::string(more) + "}");
}

std::string any_request(uint64_t r) {
  switch (r % 8) {
  case 0: return rude_chat(R"(,"stream":true)");
  case 1: return rude_chat("");
  case 2: return rude_chat(std::string(R"(,"stream":true)") + std::string(rude_tools));
  case 3: return post_ids(3000, 50, true); // a prefill of 47 chunks
  case 4: return post_ids(3000, 50, false);
  case 5: return rude_chat(R"(,"stream":true,"n":2,"chat_template_kwargs":{"thinking":false})");
  case 6: return http_post("/tokenize", R"({"prompt":")" + std::string(200'000, 'w') + "\"}");
  default: return post_ids(10, 300, true);
  }
}

} // namespace

rude_plan any_plan(uint64_t seed) {
  std::mt19937_64 random(seed);
  rude_plan p;
  p.request = any_request(random());
  p.n_sent = random() % 8 == 0 ? random() % p.request.size() : p.request.size();
  p.reads = random() % 8 != 0;
  p.n_read = random() % 3 == 0 ? 1 + random() % 20'000 : 0;
  p.n_rounds = static_cast<int>(random() % 2 == 0 ? random() % 4 : random() % 60);
  p.how = static_cast<rude_plan::way>(random() % 3);
  return p;
}

} // namespace troupe
