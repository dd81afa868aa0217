// Bodies of /v1/completions (api.md section 3).
#include "net/openai_request.h"
#include "tests/net/test_facts.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

parsed<parsed_request> completion(const std::string& fields) {
  return parse_completion_request("{" + fields + "}", *make_test_facts(), "id");
}

struct completion_row {
  std::string fields;
  std::string message; // a part of it
  std::string param;
  int status = 400;
};

} // namespace

TEST_CASE("openai_request: completion prompts in all four forms") {
  CHECK(completion(R"("prompt":"a")").value.request.prompts == std::vector<std::string>{"a"});
  CHECK(completion(R"("prompt":["a","b"],"n":2)").value.style.n_choices == 4);
  CHECK(completion(R"("prompt":[1,2])").value.request.prompt_ids == std::vector<std::vector<int32_t>>{{1, 2}});
  CHECK(completion(R"("prompt":[[1],[2,3]])").value.request.prompt_ids.size() == 2);
  CHECK(completion(R"("prompt":"a")").value.request.max_tokens == -1);
  CHECK(completion(R"("prompt":"a")").value.request.default_max_tokens == 16);
  CHECK(completion(R"("prompt":"a","echo":true)").value.request.echo);
  CHECK(completion(R"("prompt":"a","logprobs":0)").value.request.sampling.n_logprobs == 0);
  std::string prompts = "\"a\"";
  for (int i = 1; i < 65; i++) prompts += ",\"a\"";
  const completion_row rows[] = {
      {R"("n":1)", "prompt must be provided", "prompt"},
      {R"("prompt":"")", "prompt must be provided", "prompt"},
      {R"("prompt":[])", "prompt must be provided", "prompt"},
      {R"("prompt":["a",""])", "prompt must be provided", "prompt"},
      {R"("prompt":[[]])", "prompt must be provided", "prompt"},
      {R"("prompt":[129280])", "Token id 129280 is out of vocabulary", "prompt"},
      {R"("prompt":[-1])", "Token id -1 is out of vocabulary", "prompt"},
      {R"("prompt":["a",1])", "prompt: expected", "prompt"},
      {R"("prompt":5)", "prompt: expected a string or an array, found number", "prompt"},
      {R"("prompt":["a","b"],"n":33)", "2 prompts times n=33 are 66 choices, at most 64", "n"},
      {R"("prompt":[)" + prompts + "]", "65 prompts, at most 64 can run at once", "prompt"},
      {R"("prompt":"a","min_tokens":17)", "max_tokens=16, got 17", "min_tokens"},
      {R"("prompt":"a","echo":true,"max_tokens":0)", "not supported yet: echo with max_tokens 0", "max_tokens"},
      {R"("prompt":["a","b"],"return_prompt_text":true)", "not supported yet: return_prompt_text",
       "return_prompt_text"},
      {R"("prompt":"a","best_of":2)", "best_of", "best_of"},
      {R"("prompt":"a","suffix":"b")", "suffix is not currently supported", "suffix"},
      {R"("prompt":"a","logprobs":21)", "greater than max allowed: 20", "logprobs"},
      {R"("prompt":"a","echo":true,"logprobs":1)", "not supported yet: echo", "echo"},
      {R"("prompt":"a","response_format":{"type":"json_object"})", "not supported yet: response_format",
       "response_format"},
      {R"("prompt":"a","max_tokens":0)", "max_tokens must be at least 1", "max_tokens"}};
  for (const auto& r : rows) {
    CAPTURE(r.fields);
    const auto p = completion(r.fields);
    REQUIRE(p.refusal);
    CHECK_MESSAGE(p.refusal->message.find(r.message) != std::string::npos, p.refusal->message);
    CHECK(p.refusal->param == r.param);
  }
}

TEST_CASE("openai_request: render of a completion takes one prompt, never half of them in silence") {
  const auto read = [](const char* body) {
    return parse_completion_request(body, *make_test_facts(), "id", request_use::render);
  };
  CHECK(!read(R"({"prompt":["a"]})").refusal);
  const auto two = read(R"({"prompt":["a","b"]})");
  REQUIRE(two.refusal);
  CHECK(two.refusal->param == "prompt");
  CHECK(two.refusal->message.find("render takes one prompt, got 2") != std::string::npos);
}
