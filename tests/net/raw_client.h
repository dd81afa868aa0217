// A client of plain bytes for tests: what it sends is what arrives, what it gets is kept, every wait has a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct raw_response {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers; // names in lower case
  std::string body;                                         // chunks joined
  std::string header(std::string_view name) const;          // empty if absent
};

class raw_client {
public:
  explicit raw_client(uint16_t port, int receive_buffer_bytes = 0);
  ~raw_client();
  raw_client(const raw_client&) = delete;

  void send(std::string_view bytes);
  // Reads until `enough` of all bytes not yet taken, the end of the stream or the deadline. True: enough.
  bool read_until(const std::function<bool(std::string_view)>& enough, int deadline_ms = 5000);
  bool read_text(std::string_view text, int deadline_ms = 5000);       // until it has come
  bool has_come(std::string_view text);                                // so far; does not wait
  bool reads_end(int deadline_ms = 5000);                              // the server closed
  raw_response response(bool is_head = false, int deadline_ms = 5000); // status 0: none came
  void send_and_close(std::string_view bytes);                         // the end rides in the segment of the last bytes
  void shutdown_write();
  void reset(); // closes with RST
  void close();
  const std::string& pending() const { return in_; }

private:
  bool read_more(int deadline_ms);
  int fd_ = -1;
  std::string in_;
  bool ended_ = false;
};

std::string http_post(std::string_view path, std::string_view json, std::string_view headers = "");
std::string http_get(std::string_view path, std::string_view headers = "");
// Data of each event of an event stream; comments are left out.
std::vector<std::string> events_of(std::string_view stream);

} // namespace troupe
