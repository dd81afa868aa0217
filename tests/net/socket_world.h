// The whole path from the socket on one thread: real sockets and sessions on an io_context that the test turns, actors
// under CAF's testing scheduler. What a client does between two messages is repeatable, and every message is counted.
#pragma once

#include "actors/request.h"
#include "net/session.h"
#include "tests/actors/world.h"
#include "tests/net/raw_client.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <memory>

namespace troupe {

struct socket_world {
  explicit socket_world(batch_limits limits = scripted_ring::small_limits(),
                        std::function<void(ring_config&)> change = {}, settings config = {})
      : r(w, limits, 1, std::move(change)), shared(config, r.numbers, "1"), work(io.get_executor()), acceptor(io) {
    using boost::asio::ip::tcp;
    r.parts.config.max_running = limits.max_running;
    r.parts.info.name = "scripted";
    acceptor.open(tcp::v4());
    acceptor.bind({boost::asio::ip::address_v4::loopback(), 0});
    acceptor.listen();
    shared.attach(to_engine_port(w.system(), r.parts));
  }
  ~socket_world() {
    shared.attach(nullptr);
    run(); // sessions whose clients have gone end here
  }

  std::unique_ptr<raw_client> connect() {
    auto client = std::make_unique<raw_client>(acceptor.local_endpoint().port());
    boost::asio::ip::tcp::socket socket(io);
    acceptor.accept(socket);
    ++n_open;
    std::make_shared<session>(std::move(socket), shared, desk, streams)->start([this] { --n_open; });
    return client;
  }
  std::unique_ptr<raw_client> send(const std::string& bytes) {
    auto client = connect();
    client->send(bytes);
    return client;
  }
  // One message, or what the sockets have brought. False: all is at rest.
  bool step() { return io.poll() > 0 || w.run_once(); }
  void run() {
    while (step()) {}
  }
  bool run_until(const std::function<bool()>& done) {
    while (!done())
      if (!step()) return done();
    return true;
  }
  size_t n_steps() const { return r.scripts[0]->steps.size(); } // that the model ran
  bool is_idle() {
    const auto& n = *r.numbers;
    return r.is_idle() && n.running == 0 && n.waiting == 0 && n.preparing == 0 && n.paused == 0;
  }

  world w;
  scripted_ring r;
  service shared;
  boost::asio::io_context io{1};
  flush_queue streams{[this](std::function<void()> f) { boost::asio::post(io, std::move(f)); }};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  boost::asio::ip::tcp::acceptor acceptor;
  boost::asio::thread_pool desk{1};
  int n_open = 0; // sessions
};

} // namespace troupe
