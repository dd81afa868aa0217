// settings.io_threads loops of one thread each; a connection stays on the loop it was given, one after the other.
#include "net/server.h"

#include "net/flush_queue.h"
#include "net/service.h"
#include "net/session.h"
#include "storage/log.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <fmt/format.h>

#include <sys/resource.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

namespace troupe {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int64_t max_lingering = 64;     // connections beyond the limit that are waited for, so that they read why
constexpr int64_t other_descriptors = 96; // files, pipes, and accepted sockets that are about to be told

// Connections that the limit of open files allows, of those wished for.
int64_t affordable(int64_t wished) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wished;
  const int64_t most = std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - other_descriptors - max_lingering, 1);
  if (most < wished)
    spdlog::warn("max_connections: {} of {}, limited by the open files this process may have ({})", most, wished,
                 limit.rlim_cur);
  return std::min(wished, most);
}

// One thread that serves its sockets.
struct loop {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  flush_queue streams{[this](std::function<void()> f) { asio::post(io, std::move(f)); }};
};

std::vector<std::unique_ptr<loop>> make_loops(int n) {
  std::vector<std::unique_ptr<loop>> loops;
  for (int i = 0; i < std::max(1, n); i++) loops.push_back(std::make_unique<loop>());
  return loops;
}

} // namespace

struct server::impl {
  impl(const settings& config, std::shared_ptr<counters> numbers, std::string version)
      : shared(config, std::move(numbers), std::move(version)), loops(make_loops(config.io_threads)),
        acceptor(loops[0]->io), max_connections(affordable(config.max_connections)) {
    listen(config);
    asio::co_spawn(loops[0]->io, accept(), asio::detached);
    for (const auto& l : loops) threads.emplace_back([&io = l->io] { io.run(); });
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
      tcp::resolver resolver(loops[0]->io);
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
    asio::steady_timer pause(loops[0]->io);
    for (size_t i = 0; acceptor.is_open(); i = (i + 1) % loops.size()) {
      auto& next = *loops[i];
      error_code ec;
      tcp::socket socket(next.io);
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
      if (ec) { // out of descriptors: the listener must survive it
        spdlog::warn("accept: {}", ec.message());
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      welcome(std::make_shared<session>(std::move(socket), shared, desk, next.streams));
    }
  }

  void welcome(const std::shared_ptr<session>& next) {
    auto& counts = shared.counts();
    const bool is_over = counts.connections >= max_connections;
    uint64_t place;
    {
      std::lock_guard lock(mutex);
      place = ++last_place;
      sessions.emplace(place, next);
    }
    ++counts.connections;
    const auto forget = [this, place, is_over] {
      --shared.counts().connections;
      shared.counts().connections_over -= is_over;
      std::lock_guard lock(mutex);
      sessions.erase(place);
    };
    if (!is_over) return next->start(forget);
    ++counts.turned_away;
    next->turn_away(++counts.connections_over <= max_lingering, forget);
  }

  size_t close_sessions(bool now) {
    std::lock_guard lock(mutex);
    size_t n = 0;
    for (const auto& [place, w] : sessions)
      if (const auto s = w.lock(); s && !s->is_over()) {
        s->stop(now);
        n++;
      }
    return n;
  }

  bool stop(std::chrono::milliseconds deadline) {
    if (threads.empty()) return true;
    asio::post(loops[0]->io, [this] {
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
    for (const auto& l : loops) {
      l->work.reset();
      l->io.stop();
    }
    for (auto& t : threads) t.join();
    threads.clear();
    desk.join(); // its work refers to sessions
    return clean;
  }

  service shared;
  std::vector<std::unique_ptr<loop>> loops; // at least one
  asio::thread_pool desk{1};                // parses large bodies, writes large answers
  tcp::acceptor acceptor;
  std::vector<std::thread> threads;
  const int64_t max_connections;
  std::mutex mutex;                                              // guards the two below
  std::unordered_map<uint64_t, std::weak_ptr<session>> sessions; // open ones, by arrival
  uint64_t last_place = 0;
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
