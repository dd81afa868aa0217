// Who may ask the server what: keys, CORS, HEAD and OPTIONS, and the two styles of error bodies. api.md sections 0
// and 9.
#include "tests/net/test_server.h"

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("server: HEAD has the length but no body; OPTIONS needs no key") {
  test_server s;
  s.config.api_keys = {"secret"};
  s.start();
  raw_client c(s.port());
  c.send("HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n" + http_get("/version"));
  CHECK(c.response(true).header("content-length") == "19");
  CHECK(c.response().status == 200);
  const auto r = s.ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
                       "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n");
  CHECK(r.status == 204);
  CHECK(r.header("access-control-allow-origin") == "*");
  CHECK(r.header("access-control-allow-headers") == "authorization, x-stainless-os");
}

TEST_CASE("server: without a key only pages of this machine get CORS headers") {
  test_server s;
  s.start();
  CHECK(s.ask(http_get("/version", "Origin: http://localhost:3000\r\n")).header("access-control-allow-origin") ==
        "http://localhost:3000");
  for (const std::string origin : {"https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil:80",
                                   "null", "http://localhost:80@evil"})
    CHECK(s.ask(http_get("/version", "Origin: " + origin + "\r\n")).header("access-control-allow-origin").empty());
}

TEST_CASE("server: L04, no spelling of a path gets round the API key") {
  test_server s;
  s.engine.script = answer_hello;
  s.config.api_keys = {"secret-key", "other"};
  s.start();
  for (const std::string path :
       {"/v1/models", "//v1/models", "/v1/./models", "/x/../v1/models", "/%76%31/models", "/v1/models/", "/V1/models",
        "/tokenize", "/nowhere", "http://x/v1/models", "/v1/models?a=/health"}) {
    CAPTURE(path);
    CHECK(s.ask(http_get(path)).status == 401);
    CHECK(s.ask(http_get(path, "Authorization: Bearer wrong\r\n")).status == 401);
    CHECK(s.ask(http_get(path, "Authorization: Bearer secret-keysecret-key\r\n")).status == 401);
    CHECK(s.ask(http_get(path, "Authorization: Basic secret-key\r\n")).status == 401);
    CHECK(s.ask(http_get(path, "x-api-key: secret-key\r\n")).status == 401);
  }
  for (const std::string path : {"/health", "/ready", "/metrics", "/version", "/ping", "/load", "/"})
    CHECK(s.ask(http_get(path)).status == 200);
  const auto wrong = s.ask(http_post("/v1/chat/completions", chat_body()));
  CHECK(field(wrong.body, {"error", "type"}) == "AuthenticationError");
  CHECK(wrong.header("www-authenticate") == "Bearer");
  CHECK(s.ask(http_get("//v1/./models", "Authorization: bearer secret-key\r\n")).status == 200);
  CHECK(s.ask(http_post("/v1/chat/completions", chat_body(), "authorization: BEARER  other \r\n")).status == 200);
}

TEST_CASE("server: error bodies in OpenAI's style") {
  test_server s;
  s.config.error_style = "openai";
  s.start();
  const auto r = s.ask(http_post("/v1/chat/completions", R"({"model":"nope","messages":[]})"));
  CHECK(r.status == 404);
  CHECK(
      r.body ==
      R"({"error":{"message":"The model `nope` does not exist.","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
}
