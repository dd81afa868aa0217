// Turns in flight by the id of their request, for /abort.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace troupe {

// Any thread. Ids are the clients' and may be there more than once.
class running_turns {
public:
  // `abort` is called with the lock held: it only posts.
  uint64_t add(std::string request_id, std::function<void()> abort);
  void remove(uint64_t place);
  // How many were told. The id may be the one of the header or of the body ("chatcmpl-..").
  size_t abort(std::string_view request_id);

private:
  struct turn {
    std::string request_id;
    std::function<void()> abort;
  };
  std::mutex mutex_; // guards all below
  std::unordered_map<uint64_t, turn> turns_;
  std::multimap<std::string, uint64_t, std::less<>> by_id_;
  uint64_t last_ = 0;
};

} // namespace troupe
