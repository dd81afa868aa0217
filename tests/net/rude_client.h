// A client that leaves at a point of its own: before, while or after it sends, while it waits or reads, by FIN, RST or
// half a FIN. Never blocks; drive many from one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

struct rude_plan {
  std::string request;
  size_t n_sent = 0;  // of the request; less than all: it leaves while the body is on its way
  bool reads = true;  // false: a slow reader, with a small receive buffer
  size_t n_read = 0;  // leaves once so many bytes have come ...
  int n_rounds = 100; // ... or after so many rounds, whatever comes first; the end of the answer ends it too
  enum class way : uint8_t { close, reset, half } how = way::close;
};

class rude_client {
public:
  rude_client(uint16_t port, rude_plan);
  ~rude_client();
  rude_client(const rude_client&) = delete;
  // One round. False: it has left.
  bool step();
  std::string_view received() const { return in_; }
  int fd() const { return fd_; }

private:
  void leave();
  rude_plan plan_;
  int fd_ = -1;
  size_t n_sent_ = 0;
  int n_rounds_ = 0, n_linger_ = 0; // n_linger_: rounds after a half-close
  bool ended_ = false;
  std::string in_;
};

// A plan drawn from `random`: every kind of request and every point of its life.
rude_plan any_plan(uint64_t random);

} // namespace troupe
