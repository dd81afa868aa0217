// One io_context on settings.io_threads threads; a strand per connection.
#include "net/server.h"

#include "net/service.h"
#include "net/session.h"
#include "storage/log.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace troupe {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct server::impl {
  impl(const settings& config, std::shared_ptr<counters> numbers, std::string version)
      : shared(config, std::move(numbers), std::move(version)), io(std::max(1, config.io_threads)),
        work(asio::make_work_guard(io)), acceptor(io) {
    listen(config);
    asio::co_spawn(io, accept(), asio::detached);
    for (int i = 0; i < std::max(1, config.io_threads); i++) threads.emplace_back([this] { io.run(); });
  }

  void listen(const settings& config) {
    const auto fail = [&](const error_code& ec) {
      throw std::system_error(std::error_code(ec), // with its category: the resolver's errors are not the system's
                              fmt::format("cannot listen on {} port {}", config.host, config.port));
    };
    error_code ec;
    tcp::endpoint at;
    const auto address = asio::ip::make_address(config.host == "localhost" ? "127.0.0.1" : config.host, ec);
    if (ec) {
      tcp::resolver resolver(io);
      const auto found = resolver.resolve(config.host, std::to_string(config.port), ec);
      if (ec || found.empty()) fail(ec ? ec : error_code(asio::error::host_not_found));
      at = found.begin()->endpoint();
    } else {
      at = tcp::endpoint(address, static_cast<uint16_t>(config.port));
    }
    acceptor.open(at.protocol(), ec);
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor.bind(at, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) fail(ec);
  }

  asio::awaitable<void> accept() {
    asio::steady_timer pause(io);
    while (acceptor.is_open()) {
      error_code ec;
      tcp::socket socket(asio::make_strand(io));
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
      if (ec) { // out of descriptors: the listener must survive it
        spdlog::warn("accept: {}", ec.message());
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      auto next = std::make_shared<session>(std::move(socket), shared, desk);
      remember(next);
      next->start();
    }
  }

  void remember(const std::shared_ptr<session>& s) {
    std::lock_guard lock(mutex);
    if (sessions.size() >= 2 * n_open + 64) {
      std::erase_if(sessions, [](const auto& w) { return w.expired(); });
      n_open = sessions.size();
    }
    sessions.push_back(s);
  }

  size_t close_sessions(bool now) {
    std::lock_guard lock(mutex);
    size_t n = 0;
    for (const auto& w : sessions)
      if (const auto s = w.lock(); s && !s->is_over()) {
        s->stop(now);
        n++;
      }
    return n;
  }

  bool stop(std::chrono::milliseconds deadline) {
    if (threads.empty()) return true;
    asio::post(io, [this] {
      error_code ignored;
      acceptor.close(ignored);
    });
    const auto until = std::chrono::steady_clock::now() + deadline;
    bool clean = true;
    constexpr auto look = std::chrono::milliseconds(5); // between looks at who is left
    while (close_sessions(false) > 0 && (clean = std::chrono::steady_clock::now() < until))
      std::this_thread::sleep_for(look);
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (close_sessions(true) > 0 && std::chrono::steady_clock::now() < last) std::this_thread::sleep_for(look);
    shared.attach(nullptr);
    work.reset();
    io.stop();
    for (auto& t : threads) t.join();
    threads.clear();
    desk.join(); // its work refers to sessions
    return clean;
  }

  service shared;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::thread_pool desk{1}; // parses large bodies, writes large answers
  tcp::acceptor acceptor;
  std::vector<std::thread> threads;
  std::mutex mutex; // guards the two below
  std::vector<std::weak_ptr<session>> sessions;
  size_t n_open = 0;
};

server::server(const settings& config, std::shared_ptr<counters> numbers, std::string version)
    : impl_(std::make_unique<impl>(config, std::move(numbers), std::move(version))) {}

server::~server() { stop(std::chrono::milliseconds(0)); }

uint16_t server::port() const { return impl_->acceptor.local_endpoint().port(); }

std::string server::url() const {
  const auto at = impl_->acceptor.local_endpoint();
  const auto address = at.address();
  const auto host = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
  return fmt::format("http://{}:{}", host, at.port());
}

void server::attach(std::shared_ptr<const engine_port> port) { impl_->shared.attach(std::move(port)); }
void server::begin_drain() { impl_->shared.begin_drain(); }
bool server::stop(std::chrono::milliseconds deadline) { return impl_->stop(deadline); }

} // namespace troupe
