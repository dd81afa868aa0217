// Reads of a socket that never miss its end. Once a read came back short, Asio waits for an edge of epoll; where that
// read was the one that took the FIN (a watch that a turn's end had just called off), no edge follows.
#pragma once

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include <sys/socket.h>

#include <cstddef>
#include <utility>

namespace troupe {

// An AsyncReadStream over a socket that outlives it.
class eof_reader {
public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;
  explicit eof_reader(boost::asio::ip::tcp::socket& socket) : socket_(socket) {}
  executor_type get_executor() { return socket_.get_executor(); }

  template <class Buffers, class Token> auto async_read_some(const Buffers& buffers, Token&& token) {
    using boost::system::error_code;
    return boost::asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, const Buffers& to) {
          char next = 0;
          if (::recv(socket_.native_handle(), &next, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
            return socket_.async_read_some(to, std::move(handler));
          const auto executor = boost::asio::get_associated_executor(handler, socket_.get_executor());
          boost::asio::post(executor, [h = std::move(handler)]() mutable {
            std::move(h)(error_code(boost::asio::error::eof), size_t{0});
          });
        },
        token, buffers);
  }

private:
  boost::asio::ip::tcp::socket& socket_;
};

} // namespace troupe
