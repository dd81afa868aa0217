// The sinks that the network side lends to fan_out. outbox: a stream, deltas in, bytes out. collector: a whole answer.
// Neither blocks: push formats under a short lock and asks for a flush on the socket's loop only when none is on its
// way and nothing is being written; what arrives meanwhile leaves with the next write (spec/caf.md section 4).
#pragma once

#include "actors/turn_sink.h"
#include "net/openai_answer.h"
#include "net/openai_stream.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace troupe {

class outbox;

enum class write_state : uint8_t { done, failed, later };

// The socket side of an outbox. `post` and `kick` may be called from any thread; all else is called on the socket's
// loop.
struct outbox_wire {
  std::function<void(std::function<void()>)> post;   // runs the function on the loop
  std::function<void(std::shared_ptr<outbox>)> kick; // calls flush() on the loop
  // Writes the bytes, which it may change; `last`: nothing follows. `later`: they stay until written() is called.
  std::function<write_state(std::string& bytes, bool last)> write;
  std::function<void(const api_error&)> refused; // the turn failed before it opened, no byte was written
  std::function<void(bool ok)> finished;         // the last byte was written, or the socket failed
  std::function<void()> resumed;                 // a full queue was taken over for writing
  std::span<const std::byte> touched;            // memory that each write() looks at, if it is known
};

class outbox final : public turn_sink, public std::enable_shared_from_this<outbox> {
public:
  // `limit_bytes`: queued bytes above which push answers full.
  outbox(openai_stream, outbox_wire, size_t limit_bytes, bool openai_errors);

  void show_prompt(std::string_view) override;
  void open(std::span<const int32_t> prompt_ids) override;
  state push(std::span<const turn_delta>) override;
  void fail(const api_error&) override;
  void note(std::string_view) override;

  void close();            // the client is gone: lets go of the wire; any thread
  bool ping();             // loop: a comment, if nothing is queued or being written; true: the stream is open
  void flush();            // loop: after a kick
  void fetch() const;      // loop: flush() comes soon, asks for the outbox's memory
  void fetch_wire() const; // the same: a little later, asks for the socket's
  void written(bool ok);   // loop: the end of a write that was to come later

private:
  enum class stage : uint8_t { waiting, open, ended };
  using shared_wire = std::shared_ptr<const outbox_wire>;
  shared_wire wire_to_kick(); // with mutex_ held: null if a flush is on its way or nobody listens
  void kick(const shared_wire&);
  void end(bool ok);

  std::mutex mutex_; // guards all below but cur_ and is_last_, which the loop owns while busy_, and touched_
  shared_wire wire_; // shared with the calls that use it; gone once closed, failed or finished, so a sink that outlives
                     // its socket holds nothing of it
  std::string next_, cur_;
  const std::span<const std::byte> touched_; // by write(); the memory may be gone
  size_t limit_;
  bool openai_errors_;
  stage stage_ = stage::waiting;
  bool busy_ = false, closed_ = false, was_full_ = false, is_last_ = false;
  openai_stream stream_; // behind what the loop looks at
};

class collector final : public turn_sink {
public:
  struct result {
    std::string body;
    api_error failure; // status 0: none
  };
  // `done` is called once, from the thread that ends the turn, never after close(). `opened`: the turn was admitted.
  collector(openai_answer, std::function<void(result)> done, std::function<void()> opened = {});

  void show_prompt(std::string_view) override;
  void open(std::span<const int32_t> prompt_ids) override;
  state push(std::span<const turn_delta>) override;
  void fail(const api_error&) override;
  void close();

private:
  std::mutex mutex_; // guards all below
  openai_answer answer_;
  std::function<void(result)> done_;
  std::function<void()> opened_;
  bool closed_ = false;
};

} // namespace troupe
