// A real `troupe serve` child process and a plain HTTP/1.1 client: what end-to-end tests stand on.
#pragma once

#include "tests/sanitized.h"

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

struct http_answer {
  int status = 0;
  std::map<std::string, std::string> headers; // names in lower case
  std::string body;                           // chunks joined
};

// One connection to 127.0.0.1. Every call has a deadline and throws std::runtime_error naming what did not come.
class plain_client {
public:
  explicit plain_client(int port, std::chrono::seconds deadline = std::chrono::seconds(120));
  ~plain_client();
  plain_client(const plain_client&) = delete;
  plain_client& operator=(const plain_client&) = delete;

  void send(std::string_view bytes);
  // Reads what has come, at least one byte; "" at end of stream.
  std::string read_some();
  http_answer read_answer();
  http_answer get(const std::string& path);
  http_answer post(const std::string& path, std::string_view json);
  // Sends a POST without waiting for its answer.
  void start_post(const std::string& path, std::string_view json);
  void close(); // at once, whatever is in flight

private:
  bool fill();
  std::string line();
  std::string exactly(size_t n);
  int fd_ = -1;
  std::string buffer_;
};

// `troupe serve --port 0 ARGUMENTS`; the constructor returns when the server says it is ready.
class served {
public:
  explicit served(std::vector<std::string> arguments);
  ~served(); // SIGKILL if it still runs
  served(const served&) = delete;
  served& operator=(const served&) = delete;

  int port() const { return port_; }
  int pid() const { return pid_; }
  // Sends the signal and waits for the end; the exit code, or 128 + signal.
  int stop(int signal);
  const std::string& output() const { return output_; } // standard output so far

private:
  int pid_ = -1, out_ = -1, port_ = 0;
  std::string output_;
};

} // namespace troupe::test
