// The shipped model through the whole server: every conversation of eval.jsonl over HTTP.
// Source: tests/golden/tiny/eval.jsonl, made with the dequantised EXL3 weights in f32 (etc/models/tiny/README.md).
#include "tests/served.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <csignal>
#include <fstream>
#include <sstream>

namespace {

using troupe::test::plain_client;
using troupe::test::served;

const std::string data_folder = TROUPE_SOURCE_DIR "/tests/golden/tiny/";

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string base64(const std::string& bytes) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t v = static_cast<unsigned char>(bytes[i]) << 16;
    if (i + 1 < bytes.size()) v |= static_cast<unsigned char>(bytes[i + 1]) << 8;
    if (i + 2 < bytes.size()) v |= static_cast<unsigned char>(bytes[i + 2]);
    out += digits[v >> 18];
    out += digits[v >> 12 & 63];
    out += i + 1 < bytes.size() ? digits[v >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? digits[v & 63] : '=';
  }
  return out;
}

// The request of one item: its messages with pictures as data URIs, temperature 0.
std::string request_of(simdjson::dom::element item) {
  std::string messages = simdjson::minify(item["messages"]);
  simdjson::dom::array images;
  if (item["images"].get(images) == simdjson::SUCCESS) {
    for (auto image : images) {
      std::string name(std::string_view(image.get_string()));
      std::string quoted = '"' + name + '"';
      size_t at = messages.find(quoted);
      REQUIRE(at != std::string::npos);
      messages.replace(at, quoted.size(), "\"data:image/png;base64," + base64(read_all(data_folder + name)) + '"');
    }
  }
  std::string body = "{\"messages\":" + messages + ",\"temperature\":0,\"return_token_ids\":true,\"max_tokens\":" +
                     std::to_string(int64_t(item["max_tokens"].get_int64()));
  bool thinking = bool(item["thinking"].get_bool());
  body += std::string(",\"chat_template_kwargs\":{\"thinking\":") + (thinking ? "true" : "false") + "}";
  for (const char* key : {"tools", "response_format", "reasoning_effort"}) {
    simdjson::dom::element value;
    if (item[key].get(value) == simdjson::SUCCESS && !value.is_null())
      body += std::string(",\"") + key + "\":" + std::string(simdjson::minify(value));
  }
  return body + "}";
}

std::vector<int64_t> ids_of(simdjson::dom::element array) {
  std::vector<int64_t> ids;
  for (auto id : array.get_array()) ids.push_back(int64_t(id.get_int64()));
  return ids;
}

std::string json_of(const std::vector<int64_t>& ids) {
  std::string text = "{\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) text += (i ? "," : "") + std::to_string(ids[i]);
  return text + "]}";
}

// What the message says, put together as the model wrote it: reasoning, end of reasoning, content. Calls are compared
// by ids.
std::string text_of(simdjson::dom::element message, bool thinking) {
  std::string text;
  std::string_view part;
  if (thinking) {
    if (message["reasoning_content"].get(part) == simdjson::SUCCESS) text += part;
    text += "</think>";
  }
  if (message["content"].get(part) == simdjson::SUCCESS) text += part;
  return text;
}

void run_eval(const std::vector<std::string>& arguments, size_t every) {
  served server(arguments);
  plain_client client(server.port());
  simdjson::dom::parser lines, answers, rendered;
  std::istringstream file(read_all(data_folder + "eval.jsonl"));
  size_t n_items = 0, n_exact = 0, n_number = 0;
  for (std::string line; std::getline(file, line); ++n_number) {
    if (n_number % every != 0) continue;
    simdjson::dom::element item = lines.parse(line);
    std::string id(std::string_view(item["id"].get_string()));
    INFO("item ", id);
    std::string body = request_of(item);

    auto prompt = client.post("/v1/chat/completions/render", body);
    REQUIRE_MESSAGE(prompt.status == 200, prompt.body);
    CHECK(std::string_view(rendered.parse(prompt.body)["prompt"].get_string()) ==
          std::string_view(item["prompt"].get_string()));

    auto answer = client.post("/v1/chat/completions", body);
    REQUIRE_MESSAGE(answer.status == 200, answer.body);
    simdjson::dom::element reply = answers.parse(answer.body);
    CHECK(int64_t(reply["usage"]["prompt_tokens"].get_int64()) == int64_t(item["prompt_tokens"].get_int64()));
    ++n_items;
    if (!bool(item["stable"].get_bool())) continue;
    ++n_exact;
    simdjson::dom::element choice = reply["choices"].at(0);
    auto ids = ids_of(choice["token_ids"]);
    CHECK(ids == ids_of(item["expected_ids"]));
    CHECK(int64_t(reply["usage"]["completion_tokens"].get_int64()) == static_cast<int64_t>(ids.size()));
    std::string_view wanted = item["finish_reason"].get_string(), text = item["expected_text"].get_string();
    CHECK(std::string_view(choice["finish_reason"].get_string()) == wanted);
    if (!ids.empty() && ids.back() == 1) ids.pop_back();
    auto spelled = client.post("/detokenize", json_of(ids));
    REQUIRE(spelled.status == 200);
    CHECK(std::string_view(answers.parse(spelled.body)["prompt"].get_string()) == text);
    if (wanted == "tool_calls") continue;
    reply = answers.parse(answer.body);
    CHECK(text_of(reply["choices"].at(0)["message"], bool(item["thinking"].get_bool())) == text);
  }
  MESSAGE("eval.jsonl: ", n_items, " conversations, ", n_exact, " of them stable and compared token for token");
  CHECK(server.stop(SIGTERM) == 0);
}

} // namespace

TEST_CASE("eval: every stable conversation gives the expected prompt, ids, text and cause of end over HTTP" *
          doctest::test_suite("slow")) {
  run_eval({}, 1);
}

TEST_CASE("eval: two ranks answer as one" * doctest::test_suite("slow")) { run_eval({"--ranks", "2"}, 5); }
