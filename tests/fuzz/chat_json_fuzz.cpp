// libFuzzer target: no body makes the request parsers crash, and every body is either refused with a whole error or
// gives values within their ranges. First byte: which endpoint; the rest: the body.
// Built and run by etc/fuzz.sh; a dictionary is beside it (-dict=tests/fuzz/chat_json.dict).
// Sources: net/openai_request.cpp net/chat_messages.cpp net/chat_calls.cpp net/chat_mode.cpp
// Sources: net/tool_fields.cpp net/sampling_fields.cpp net/constraint_fields.cpp net/fields.cpp
// Sources: net/json_tree.cpp net/python_json.cpp net/data_uri.cpp net/api_errors.cpp net/json_text.cpp
#include "net/api_errors.h"
#include "net/json_text.h"
#include "net/json_tree.h"
#include "net/openai_request.h"
#include "net/python_json.h"
#include "tests/net/test_facts.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using namespace troupe;

void require(bool good) {
  if (!good) std::abort();
}

// Python writes a number beyond a double as Infinity, which is no JSON.
bool is_beyond_json(std::string_view text) { return text.find("Infinity") != std::string_view::npos; }

// An error must be one line of JSON that reads back, whatever a client wrote into it.
void check_refusal(const api_error& e) {
  require(e.status >= 400 && e.status < 600 && !e.message.empty());
  json_document doc;
  require(doc.parse(error_body(e, false)) && doc.parse(error_body(e, true)));
}

void check_request(const chat_request& r, int64_t vocabulary) {
  require(r.sampling.temperature >= 0 && r.sampling.temperature <= 2);
  require(r.sampling.top_p > 0 && r.sampling.top_p <= 1);
  require(r.n >= 1 && (r.max_tokens == -1 || r.max_tokens >= 1) && r.stop.size() <= 16);
  for (const auto& [id, bias] : r.sampling.logit_bias)
    require(id >= 0 && id < vocabulary && bias >= -100 && bias <= 100);
  if (!r.is_chat) return;
  require(!r.chat.messages.empty() && r.chat.effort >= 1 && r.chat.effort <= 100);
  for (const auto& m : r.chat.messages)
    for (const auto& part : m.parts)
      require(part.image < static_cast<int32_t>(r.image_files.size()) && is_well_formed_utf8(part.text));
  for (const auto& tool : r.chat.tools) {
    json_document doc;
    require(doc.parse(tool.schema_line) || is_beyond_json(tool.schema_line));
    require(!tool.name.empty() && tool.schema_line.find('\n') == std::string::npos);
  }
}

// What the tree says in Python's form is JSON again, and says the same.
void check_round(std::string_view text) {
  json_document first, second;
  if (!first.parse(text)) return;
  const auto once = to_python_json(first.root());
  if (is_beyond_json(once)) return;
  require(second.parse(once) && to_python_json(second.root()) == once);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const auto facts = make_test_facts();
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto check = [&](const auto& p) {
    if (p.refusal)
      check_refusal(*p.refusal);
    else
      check_request(p.value.request, facts->vocabulary);
  };
  switch (data[0] % 5) {
  case 0: check(parse_chat_request(body, *facts, "id")); break;
  case 1: check(parse_chat_request(body, *facts, "", request_use::render)); break;
  case 2: check(parse_completion_request(body, *facts, "id")); break;
  case 3:
    if (const auto p = parse_tokenize_request(body, *facts); p.refusal) check_refusal(*p.refusal);
    break;
  default:
    if (const auto p = parse_detokenize_request(body, *facts); p.refusal) check_refusal(*p.refusal);
  }
  check_round(body);
  return 0;
}
