// Beast over one socket; the io_context runs until the exchange or the deadline is over.
#include "net/client.h"

#define BOOST_DISABLE_ASSERTS // see http_parser.h

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <fmt/format.h>

#include <stdexcept>

namespace troupe {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

struct address {
  std::string host, port;
};

address split(const std::string& url) {
  constexpr std::string_view scheme = "http://";
  if (!url.starts_with(scheme)) throw std::runtime_error(fmt::format("'{}': expected http://host:port", url));
  auto rest = url.substr(scheme.size());
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || rest.ends_with(']')) return {rest, "80"};
  auto host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {host, rest.substr(colon + 1)};
}

client_answer exchange(const std::string& url, http::request<http::string_body> request,
                       std::chrono::milliseconds deadline) {
  const auto to = split(url);
  asio::io_context io;
  tcp::resolver resolver(io);
  tcp::socket socket(io);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(uint64_t{64} << 20);
  error_code result = asio::error::timed_out;
  request.set(http::field::host, to.host + ":" + to.port);
  request.set(http::field::connection, "close");
  request.prepare_payload();
  error_code ec;
  const auto found = resolver.resolve(to.host, to.port, ec);
  if (ec) throw std::runtime_error(fmt::format("{}: {}", url, ec.message()));
  const auto on_read = [&](error_code e, size_t) { result = e; };
  const auto on_write = [&](error_code e, size_t) {
    result = e;
    if (!e) {
      result = asio::error::timed_out;
      http::async_read(socket, buffer, parser, on_read);
    }
  };
  asio::async_connect(socket, found, [&](error_code e, const tcp::endpoint&) {
    result = e;
    if (!e) {
      result = asio::error::timed_out;
      http::async_write(socket, request, on_write);
    }
  });
  io.run_for(deadline);
  if (result) throw std::runtime_error(fmt::format("{}: {}", url, result.message()));
  return {static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
}

http::request<http::string_body> make_request(http::verb verb, std::string_view path, const std::string& api_key) {
  http::request<http::string_body> r{verb, {path.data(), path.size()}, 11};
  if (!api_key.empty()) r.set(http::field::authorization, "Bearer " + api_key);
  return r;
}

} // namespace

client_answer http_get(const std::string& url, std::string_view path, const std::string& api_key,
                       std::chrono::milliseconds deadline) {
  return exchange(url, make_request(http::verb::get, path, api_key), deadline);
}

client_answer http_post(const std::string& url, std::string_view path, std::string_view json,
                        const std::string& api_key, std::chrono::milliseconds deadline) {
  auto r = make_request(http::verb::post, path, api_key);
  r.set(http::field::content_type, "application/json");
  r.body() = json;
  return exchange(url, std::move(r), deadline);
}

} // namespace troupe
