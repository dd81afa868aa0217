// Golden requests: JSON body -> chat_input -> prompt and ids (encoding_cases.json); refusals (encoding_errors.json).
#include "model/deepseek_v41/chat.h"
#include "model/tokenizer.h"
#include "net/json_tree.h"
#include "net/openai_request.h"
#include "net/python_json.h"
#include "tests/net/test_facts.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <fstream>
#include <sstream>

using namespace troupe;

namespace {

const std::string folder = std::string(TROUPE_SOURCE_DIR) + "/tests/golden/chat/";

std::string read_text(const std::string& name) {
  std::ifstream in(folder + name, std::ios::binary);
  REQUIRE_MESSAGE(in, name);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

std::shared_ptr<const tokenizer> golden_tokenizer() {
  static const auto words = [] {
    const std::string path = folder + "tokenizer_v41_equiv.json.gz";
    gzFile in = gzopen(path.c_str(), "rb");
    REQUIRE(in);
    std::string text;
    char piece[1 << 16];
    for (int n; (n = gzread(in, piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(n));
    gzclose(in);
    return tokenizer::parse(text, "tokenizer_v41_equiv.json");
  }();
  return words;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Refusal of parsing, or of rendering, as the server would answer it.
std::optional<api_error> refusal_of(const std::string& body, const request_facts& facts) {
  auto p = parse_chat_request(body, facts, "", request_use::render);
  if (p.refusal) return p.refusal;
  try {
    render_chat(p.value.request.chat);
  } catch (const chat_error& e) { return api_error{400, "BadRequestError", e.what(), e.param, 0}; }
  return {};
}

} // namespace

TEST_CASE("openai_request: every golden request gives the golden prompt and ids") {
  json_document doc;
  REQUIRE(doc.parse(read_text("encoding_cases.json")));
  const auto words = golden_tokenizer();
  int n = 0;
  for (const auto& c : doc.root().find("cases")->items) {
    CAPTURE(std::string(c.find("id")->text));
    auto facts = make_test_facts();
    if (const auto* options = c.find("options")) {
      if (options->find("enable_task_field")) facts->config.enable_task_field = true;
    }
    std::string body = to_python_json(*c.find("request"));
    replace_all(body, "https://example.com/b.png", "data:image/png;base64,iVBORw0KGgo="); // fetching URLs is off
    if (const auto* options = c.find("options"); options && options->find("response_format_hint")) {
      // The case names the object to append; a client asks for it in OpenAI's form.
      const auto hint = to_python_json(*options->find("response_format_hint"));
      body.pop_back();
      body +=
          hint == "{\"type\": \"json_object\"}"
              ? ", \"response_format\": " + hint + "}"
              : ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": " +
                    hint + "}}}";
    }
    auto p = parse_chat_request(body, *facts, "", request_use::render);
    REQUIRE_MESSAGE(!p.refusal, p.refusal->message);
    const auto prompt = render_chat(p.value.request.chat);
    CHECK(prompt.text() == c.find("prompt")->text);
    std::vector<int32_t> ids;
    for (const auto& v : c.find("prompt_token_ids")->items)
      ids.push_back(static_cast<int32_t>(std::stol(std::string(v.text))));
    CHECK(words->encode(prompt, true, 1 << 20) == ids);
    const auto* images = c.find("images");
    CHECK(prompt.images.size() == (images ? images->items.size() : 0));
    n++;
  }
  CHECK(n == 94);
}

TEST_CASE("openai_request: every golden mistake is a 400 that names the field") {
  json_document doc;
  REQUIRE(doc.parse(read_text("encoding_errors.json")));
  const auto facts = make_test_facts();
  int n = 0;
  for (const auto& c : doc.root().find("cases")->items) {
    CAPTURE(std::string(c.find("id")->text));
    const auto refusal = refusal_of(to_python_json(*c.find("request")), *facts);
    REQUIRE(refusal);
    CHECK(refusal->status == 400);
    CHECK(refusal->type == "BadRequestError");
    CHECK(refusal->message.size() > 10);
    if (const auto* param = c.find("param"); !param->is(json_kind::null)) CHECK(refusal->param == param->text);
    n++;
  }
  CHECK(n == 24);
}
