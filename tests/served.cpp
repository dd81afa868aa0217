// Child process and plain sockets for end-to-end tests.
#include "tests/served.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace troupe::test {

namespace {

std::string lower(std::string s) {
  std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return std::tolower(c); });
  return s;
}

} // namespace

plain_client::plain_client(int port, std::chrono::seconds deadline) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  timeval limit{deadline.count() * (is_sanitized ? 15 : 1), 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    ::close(fd_);
    throw std::runtime_error("cannot connect to port " + std::to_string(port) + ": " + std::strerror(errno));
  }
}

plain_client::~plain_client() { close(); }

void plain_client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void plain_client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) throw std::runtime_error(std::string("send failed: ") + std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

bool plain_client::fill() {
  char part[16384];
  ssize_t n = ::recv(fd_, part, sizeof part, 0);
  if (n < 0) throw std::runtime_error(std::string("receive failed: ") + std::strerror(errno));
  buffer_.append(part, static_cast<size_t>(n));
  return n > 0;
}

std::string plain_client::read_some() {
  if (buffer_.empty()) fill();
  return std::exchange(buffer_, {});
}

std::string plain_client::line() {
  for (;;) {
    if (size_t end = buffer_.find("\r\n"); end != std::string::npos) {
      std::string text = buffer_.substr(0, end);
      buffer_.erase(0, end + 2);
      return text;
    }
    if (!fill()) throw std::runtime_error("the server closed the connection inside a line");
  }
}

std::string plain_client::exactly(size_t n) {
  while (buffer_.size() < n)
    if (!fill()) throw std::runtime_error("the server closed the connection inside a body");
  std::string text = buffer_.substr(0, n);
  buffer_.erase(0, n);
  return text;
}

http_answer plain_client::read_answer() {
  http_answer answer;
  std::string status = line();
  if (status.size() < 12) throw std::runtime_error("no HTTP status line: " + status);
  answer.status = std::stoi(status.substr(9, 3));
  for (std::string h = line(); !h.empty(); h = line()) {
    size_t colon = h.find(':');
    size_t value = h.find_first_not_of(' ', colon + 1);
    answer.headers[lower(h.substr(0, colon))] = value == std::string::npos ? "" : h.substr(value);
  }
  if (auto size = answer.headers.find("content-length"); size != answer.headers.end()) {
    answer.body = exactly(std::stoul(size->second));
  } else if (answer.headers["transfer-encoding"] == "chunked") {
    while (size_t n = std::stoul(line(), nullptr, 16)) {
      answer.body += exactly(n);
      line();
    }
    line();
  }
  return answer;
}

http_answer plain_client::get(const std::string& path) {
  send("GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  return read_answer();
}

void plain_client::start_post(const std::string& path, std::string_view json) {
  std::string text = "POST " + path +
                     " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
                     std::to_string(json.size()) + "\r\n\r\n";
  text += json;
  send(text);
}

http_answer plain_client::post(const std::string& path, std::string_view json) {
  start_post(path, json);
  return read_answer();
}

served::served(std::vector<std::string> arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe for the server's output");
  arguments.insert(arguments.begin(), {TROUPE_BINARY_DIR "/troupe", "serve", "--port", "0"});
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[1], 1);
    ::execv(argv[0], argv.data());
    _exit(127);
  }
  ::close(ends[1]);
  out_ = ends[0];
  // "ready" comes on standard output, with the address before it; a minute is a generous limit for the tiny model.
  while (output_.find("ready") == std::string::npos) {
    pollfd wait{out_, POLLIN, 0};
    char part[4096];
    ssize_t n = ::poll(&wait, 1, 60000) == 1 ? ::read(out_, part, sizeof part) : 0;
    if (n <= 0) {
      stop(SIGKILL);
      throw std::runtime_error("the server did not get ready; it said: " + output_);
    }
    output_.append(part, static_cast<size_t>(n));
  }
  size_t at = output_.find("http://127.0.0.1:");
  if (at == std::string::npos) throw std::runtime_error("the server printed no address: " + output_);
  port_ = std::stoi(output_.substr(at + 17));
}

served::~served() {
  if (pid_ > 0) stop(SIGKILL);
  if (out_ >= 0) ::close(out_);
}

int served::stop(int signal) {
  if (pid_ <= 0) return -1;
  ::kill(pid_, signal);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace troupe::test
