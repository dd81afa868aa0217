// POSIX sockets and poll.
#include "tests/net/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>

namespace troupe {

std::string raw_response::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

raw_client::raw_client(uint16_t port, int receive_buffer_bytes)
    : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) throw std::runtime_error("cannot connect");
}

raw_client::~raw_client() { close(); }

void raw_client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void raw_client::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void raw_client::shutdown_write() { ::shutdown(fd_, SHUT_WR); }

void raw_client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return; // the server closed; reading shows it
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

bool raw_client::read_more(int deadline_ms) {
  pollfd p{fd_, POLLIN, 0};
  if (ended_ || ::poll(&p, 1, deadline_ms) <= 0) return false;
  char piece[65536];
  const auto n = ::recv(fd_, piece, sizeof piece, 0);
  if (n <= 0) {
    ended_ = true;
    return false;
  }
  in_.append(piece, static_cast<size_t>(n));
  return true;
}

bool raw_client::read_until(const std::function<bool(std::string_view)>& enough, int deadline_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  while (!enough(in_)) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0 || !read_more(static_cast<int>(left))) return enough(in_);
  }
  return true;
}

bool raw_client::read_text(std::string_view text, int deadline_ms) {
  return read_until([&](std::string_view all) { return all.find(text) != std::string_view::npos; }, deadline_ms);
}

bool raw_client::has_come(std::string_view text) {
  while (read_more(0)) {}
  return in_.find(text) != std::string::npos;
}

bool raw_client::reads_end(int deadline_ms) {
  read_until([this](std::string_view) { return ended_; }, deadline_ms);
  return ended_;
}

raw_response raw_client::response(bool is_head, int deadline_ms) {
  raw_response r;
  if (!read_text("\r\n\r\n", deadline_ms)) return r;
  const size_t end = in_.find("\r\n\r\n");
  std::string head = in_.substr(0, end + 2);
  in_.erase(0, end + 4);
  r.status = std::stoi(head.substr(9, 3));
  for (size_t from = head.find("\r\n") + 2; from < head.size();) {
    const size_t stop = head.find("\r\n", from), colon = head.find(':', from);
    std::string name = head.substr(from, colon - from);
    for (auto& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    r.headers.emplace_back(name, head.substr(colon + 2, stop - colon - 2));
    from = stop + 2;
  }
  if (r.status == 100) return response(is_head, deadline_ms);
  if (is_head || r.status == 204) return r;
  if (r.header("transfer-encoding") == "chunked") {
    for (;;) {
      if (!read_text("\r\n", deadline_ms)) return r;
      const size_t line = in_.find("\r\n"), size = std::stoul(in_.substr(0, line), nullptr, 16);
      if (!read_until([&](std::string_view all) { return all.size() >= line + 4 + size; }, deadline_ms)) return r;
      r.body += in_.substr(line + 2, size);
      in_.erase(0, line + 4 + size);
      if (size == 0) return r;
    }
  }
  const size_t size = r.header("content-length").empty() ? 0 : std::stoul(r.header("content-length"));
  read_until([&](std::string_view all) { return all.size() >= size; }, deadline_ms);
  r.body = in_.substr(0, size);
  in_.erase(0, size);
  return r;
}

std::string http_post(std::string_view path, std::string_view json, std::string_view headers) {
  std::string out = "POST ";
  out.append(path).append(" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ");
  out += std::to_string(json.size());
  return out.append("\r\n").append(headers).append("\r\n").append(json);
}

std::string http_get(std::string_view path, std::string_view headers) {
  std::string out = "GET ";
  return out.append(path).append(" HTTP/1.1\r\nHost: x\r\n").append(headers).append("\r\n");
}

std::vector<std::string> events_of(std::string_view stream) {
  std::vector<std::string> out;
  for (size_t from = 0; from < stream.size();) {
    const size_t end = std::min(stream.find("\n\n", from), stream.size());
    const auto event = stream.substr(from, end - from);
    if (event.starts_with("data: ")) out.emplace_back(event.substr(6));
    from = end + 2;
  }
  return out;
}

} // namespace troupe
