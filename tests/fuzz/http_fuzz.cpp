// libFuzzer target: no bytes of a client make the HTTP side crash: the parser as the session sets it up, the route, the
// guard, and the answer that the service gives. First byte: keys on or off; second: how the bytes are cut.
// Built and run by etc/fuzz.sh; its dictionary is tests/fuzz/http.dict.
// Sources: net/service.cpp net/routes.cpp net/access.cpp net/http_reply.cpp net/http_head.cpp net/running_turns.cpp
// Sources: net/metrics_text.cpp net/answer_text.cpp net/openai_request.cpp net/chat_messages.cpp
// Sources: net/chat_calls.cpp net/chat_mode.cpp net/tool_fields.cpp net/sampling_fields.cpp
// Sources: net/constraint_fields.cpp net/fields.cpp net/json_tree.cpp net/python_json.cpp net/data_uri.cpp
// Sources: net/api_errors.cpp net/json_text.cpp actors/counters.cpp actors/queue_limit.cpp
#include "net/http_head.h"
#include "net/http_parser.h"
#include "net/openai_request.h"
#include "net/service.h"
#include "tests/net/test_facts.h"

#include <boost/asio/buffer.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

using namespace troupe;

void require_http(bool good) {
  if (!good) std::abort();
}

service& shared_service(bool with_keys) {
  static const auto make = [](bool keys) {
    settings config;
    config.max_body_bytes = 2000;
    if (keys) config.api_keys = {"secret", "other"};
    auto numbers = std::make_shared<counters>();
    numbers->now = phase::ready;
    auto made = std::make_unique<service>(config, numbers, "1");
    auto port = std::make_shared<engine_port>();
    port->facts = make_test_facts();
    made->attach(port);
    return made;
  };
  static const auto open = make(false), guarded = make(true);
  return with_keys ? *guarded : *open;
}

void check_reply(const http_reply& reply, const answer_head& head) {
  const auto text = reply_head(reply, head);
  require_http(text.starts_with("HTTP/1.1 ") && text.ends_with("\r\n\r\n"));
  require_http(text.find("\r\n\r\n") == text.size() - 4); // no header injection
  require_http(reply.status == 200 || reply.status == 204 || reply.status >= 400);
}

void answer_one(service& s, request_parser& parser, bool guarded) {
  const request_head head = to_head(parser);
  answer_head answer;
  answer.request_id = accepted_request_id(head.request_id);
  answer.origin = allowed_origin(s.config(), head.origin);
  if (const auto e = check_head(parser); e.status != 0) return check_reply(s.refuse(e), answer);
  const route to = find_route(head.target, true);
  if (auto reply = s.answer_head(to, head)) return check_reply(*reply, answer);
  if (guarded && !to.is_open)
    require_http(head.authorization.find("secret") != std::string_view::npos ||
                 head.authorization.find("other") != std::string_view::npos);
  const auto out = s.answer(to, head, parser.get().body(), answer.request_id);
  if (out.what == service::outcome::kind::reply) check_reply(out.reply, answer);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool guarded = data[0] & 1;
  service& s = shared_service(guarded);
  const size_t piece = 1 + data[1];
  data += 2, size -= 2;
  for (int n = 0; n < 4 && size > 0; n++) { // pipelined requests of one connection
    request_parser parser;
    set_limits(parser, s.config().max_body_bytes);
    boost::system::error_code ec;
    size_t offered = std::min(piece, size);
    while (!parser.is_done() &&
           offered > 0) { // a parser keeps nothing: what it did not take is offered again, with more
      const size_t used = parser.put(boost::asio::buffer(data, offered), ec);
      data += used, size -= used;
      if (ec && ec != boost::beast::http::error::need_more) break;
      if (offered - used >= size && used == 0) break; // all that there is
      offered = std::min(offered - used + piece, size);
      ec = {};
    }
    if (ec) {
      const auto e = to_error(ec, s.config().max_body_bytes);
      if (e.status != 0) check_reply(s.refuse(e), {});
      return 0;
    }
    if (!parser.is_done()) return 0;
    answer_one(s, parser, guarded);
  }
  return 0;
}
