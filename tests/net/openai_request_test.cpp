// Fields of chat and completion bodies: ranges, messages, what is refused and by which name (api.md 2.1, 3, 9).
#include "net/openai_request.h"
#include "tests/net/test_facts.h"

#include <doctest/doctest.h>

#include <set>

using namespace troupe;

namespace {

const std::string user = R"("messages":[{"role":"user","content":"hi"}])";
const std::string tools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":["string","null"]},"c":{}}}}}])";

parsed<parsed_request> chat(const std::string& more, const request_facts& facts = *make_test_facts()) {
  return parse_chat_request("{" + user + (more.empty() ? "" : "," + more) + "}", facts, "id");
}
// "x0,x1,..": `n` times the item with its % replaced by a number.
std::string many(int n, const std::string& item) {
  const auto at = item.find('%');
  std::string all;
  for (int i = 0; i < n; i++) all += (i ? "," : "") + item.substr(0, at) + std::to_string(i) + item.substr(at + 1);
  return all;
}
struct refusal_row {
  std::string fields;
  std::string message; // a part of it
  std::string param;
  int status = 400;
};

} // namespace

TEST_CASE("openai_request: every field out of range is refused with its message and param") {
  const refusal_row rows[] = {
      {R"("model":"X")", "The model `X` does not exist.", "model", 404},
      {R"("model":5)", "model: expected a string, found 5", "model"},
      {R"("stream":1)", "stream: expected a boolean, found 1", "stream"},
      {R"("stream_options":{"include_usage":true})", "Stream options can only be defined when `stream=True`.",
       "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":"yes"})", "stream_options.include_usage: expected a boolean",
       "stream_options"},
      {R"("max_tokens":0)", "max_tokens must be at least 1, got 0.", "max_tokens"},
      {R"("max_completion_tokens":-5)", "max_tokens must be at least 1, got -5.", "max_completion_tokens"},
      {R"("max_tokens":"1")", "max_tokens: expected an integer, found string", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens: expected an integer, found 1.5", "max_tokens"},
      {R"("max_tokens":true)", "max_tokens: expected an integer, found boolean", "max_tokens"},
      {R"("max_tokens":9223372036854775808)", "max_tokens: expected an integer", "max_tokens"},
      {R"("n":0)", "n must be at least 1", "n"},
      {R"("n":65)", "at most 64, got 65.", "n"}, // max_running
      {R"("model":"")", "The model `` does not exist.", "model", 404},
      {R"("temperature":2.5)", "temperature must be in [0, 2], got 2.5.", "temperature"},
      {R"("temperature":-0.1)", "temperature must be in [0, 2], got -0.1.", "temperature"},
      {R"("temperature":"0")", "temperature: expected a finite number, found string", "temperature"},
      {R"("temperature":1e999)", "temperature: expected a finite number", "temperature"},
      {R"("top_p":0)", "top_p must be in (0, 1], got 0.", "top_p"},
      {R"("top_p":1.1)", "top_p must be in (0, 1], got 1.1.", "top_p"},
      {R"("top_k":-2)", "top_k must be 0 (disable), or at least 1, got -2.", "top_k"},
      {R"("min_p":1.5)", "min_p must be in [0, 1], got 1.5.", "min_p"},
      {R"("frequency_penalty":3)", "frequency_penalty must be in [-2, 2], got 3.", "frequency_penalty"},
      {R"("presence_penalty":-3)", "presence_penalty must be in [-2, 2], got -3.", "presence_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty must be greater than 0, got 0.", "repetition_penalty"},
      {R"("repetition_penalty":2000000)", "repetition_penalty must be at most 1000000, got 2000000.",
       "repetition_penalty"},
      {R"("logit_bias":{)" + many(1025, R"("%":1)") + "}", "logit_bias: at most 1024 tokens, got 1025", "logit_bias"},
      {R"("bad_words":[)" + many(1025, R"("w%")") + "]", "bad_words: at most 1024 words, got 1025", "bad_words"},
      {R"("bad_words":[")" + std::string(257, 'a') + R"("])", "a word has at most 256 bytes, found one of 257",
       "bad_words"},
      {R"("stop_token_ids":[)" + many(1025, "%") + "]", "stop_token_ids: at most 1024 ids, got 1025", "stop_token_ids"},
      {R"("reasoning_effort":1.5)", "reasoning_effort: expected", "reasoning_effort"},
      {R"("reasoning_effort":101)", "reasoning_effort: expected", "reasoning_effort"},
      {R"("thinking_token_budget":-2)", "thinking_token_budget must be at least -1, got -2.", "thinking_token_budget"},
      {R"("logit_bias":{"x":1})",
       "token_id(s) [x] in logit_bias contain out-of-vocab token ids. Vocabulary size: 129280", "logit_bias"},
      {R"("logit_bias":{"5":1,"129280":1,"-1":2})", "token_id(s) [129280, -1] in logit_bias", "logit_bias"},
      {R"("logit_bias":{"5":"a"})", "logit_bias.5: expected a number", "logit_bias"},
      {R"("seed":9223372036854775808)", "seed: expected an integer", "seed"},
      {R"("seed":0.5)", "seed: expected an integer", "seed"},
      {R"("stop":"")", "stop cannot contain an empty string.", "stop"},
      {R"("stop":["a",""])", "stop cannot contain an empty string.", "stop"},
      {R"("stop":[1])", "stop: expected a string or an array of strings", "stop"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "at most 16", "stop"},
      {R"("stop_token_ids":[129280])", "Token id 129280 is out of vocabulary", "stop_token_ids"},
      {R"("stop_token_ids":["a"])", "stop_token_ids[0]: expected a token id", "stop_token_ids"},
      {R"("min_tokens":-1)", "min_tokens must be greater than or equal to 0, got -1.", "min_tokens"},
      {R"("min_tokens":9,"max_tokens":8)", "min_tokens must be less than or equal to max_tokens=8, got 9.",
       "min_tokens"},
      {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens"},
      {R"("top_logprobs":2)", "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "Requested sample logprobs of 21, which is greater than max allowed: 20",
       "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":-1)", "`top_logprobs` must be a positive value.", "top_logprobs"},
      {R"("logprobs":5)", "logprobs: expected a boolean", "logprobs"},
      {R"("prompt_logprobs":-2)", "`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs"},
      {R"("prompt_logprobs":1,"stream":true)", "`prompt_logprobs` are not available when `stream=True`.",
       "prompt_logprobs"},
      {R"("prompt_logprobs":1)", "not supported yet: prompt_logprobs", "prompt_logprobs"},
      {R"("response_format":{"type":"json_schema"})", "the 'json_schema' field must be provided.", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "response_format.json_schema.schema: required", "response_format"},
      {R"("response_format":{"type":"json_schema","json_shema":{}})", "response_format.json_shema: unknown field",
       "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{},"strict":true}})",
       "not supported yet: response_format.json_schema.strict", "response_format"},
      {R"("response_format":{"type":"yaml"})", "expected text, json_object or json_schema, found 'yaml'",
       "response_format"},
      {R"("response_format":{"type":"structural_tag"})", "not supported yet", "response_format"},
      {R"("response_format":"json")", "response_format: expected an object", "response_format"},
      {R"("structured_outputs":{"json":{},"regex":"a"})", "only use one kind", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a"})", "not supported yet: structured_outputs", "structured_outputs"},
      {R"("guided_json":{})", "not supported yet: guided_json", "guided_json"},
      {R"("guided_regex":"a")", "not supported yet: guided_regex", "guided_regex"},
      {R"("guided_choice":["a"])", "not supported yet: guided_choice", "guided_choice"},
      {R"("guided_grammar":"a")", "not supported yet: guided_grammar", "guided_grammar"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type: 'web_search' is not supported", "tools"},
      {R"("tools":[{"type":"function"}])", "tools[0].function: required", "tools"},
      {R"("tools":[5])", "tools[0]: expected an object, found number", "tools"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "'a b' is not a name", "tools"},
      {R"("tools":[{"type":"function","function":{"name":")" + std::string(65, 'a') + R"("}}])", "is not a name",
       "tools"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])",
       "not supported yet: tools[0].function.strict", "tools"},
      {R"("tool_choice":"required")", "When using `tool_choice`, `tools` must be set.", "tool_choice"},
      {tools + R"(,"tool_choice":"required")", "not supported yet: tool_choice", "tool_choice"},
      {tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})", "not supported yet: tool_choice",
       "tool_choice"},
      {tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
       "does not match any of the specified `tools`", "tool_choice"},
      {tools + R"(,"tool_choice":"maybe")", "tool_choice: expected none, auto, required", "tool_choice"},
      {R"("functions":[{"name":"f"}],"function_call":{"name":"f"})", "not supported yet: function_call",
       "function_call"},
      {R"("chat_template_kwargs":{"thinking":1})", "chat_template_kwargs.thinking: expected a boolean",
       "chat_template_kwargs"},
      {R"("thinking":{"type":"maybe"})", "thinking.type: expected enabled, disabled or adaptive", "thinking"},
      {R"("thinking":{"type":"enabled","budget_tokens":5})", "not supported yet: thinking.budget_tokens", "thinking"},
      {R"("reasoning":{"max_tokens":5})", "not supported yet: reasoning.max_tokens", "reasoning"},
      {R"("thinking_token_budget":5)", "not supported yet: thinking_token_budget", "thinking_token_budget"},
      {R"("chat_template":"{{x}}")", "takes no templates", "chat_template"},
      {R"("mm_processor_kwargs":{"a":1})", "unknown key 'a'", "mm_processor_kwargs"},
      {R"("cache_salt":"")", "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"},
      {R"("cache_salt":1)", "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"},
      {R"("modalities":["text","audio"])", "modalities: only text", "modalities"},
      {R"("allowed_token_ids":[])", "allowed_token_ids cannot be empty.", "allowed_token_ids"},
      {R"("allowed_token_ids":[1,9],"min_tokens":2,"stop_token_ids":[9])", "together allow no token at all",
       "allowed_token_ids"},
      {R"("allowed_token_ids":[97],"bad_words":["a"])", "together allow no token at all", "allowed_token_ids"},
      {R"("allowed_token_ids":[97],"logit_bias":{"97":-100})", "together allow no token at all", "allowed_token_ids"},
      {R"("bad_words":[""])", "bad_words cannot contain an empty string.", "bad_words"},
      {R"("logits_processors":["x"])", "logits_processors are not accepted", "logits_processors"},
      {R"("repetition_detection":{})", "not supported yet: repetition_detection", "repetition_detection"},
      {R"("use_beam_search":true)", "use_beam_search is not implemented", "use_beam_search", 501},
      {R"("priority":"high")", "priority: expected an integer", "priority"},
  };
  for (const auto& r : rows) {
    CAPTURE(r.fields);
    const auto p = chat(r.fields);
    REQUIRE(p.refusal);
    CHECK(p.refusal->status == r.status);
    CHECK_MESSAGE(p.refusal->message.find(r.message) != std::string::npos, p.refusal->message);
    CHECK(p.refusal->param == r.param);
  }
}

TEST_CASE("openai_request: messages that cannot be read name their place") {
  const auto facts = make_test_facts();
  const refusal_row rows[] = {
      {R"("model":null)", "messages: required", "messages"},
      {R"("messages":null)", "messages: required", "messages"},
      {R"("messages":{})", "messages: expected an array, found object", "messages"},
      {R"("messages":[])", "at least one message", "messages"},
      {R"("messages":["a"])", "messages[0]: expected an object, found string", "messages"},
      {R"("messages":[{"content":"a"}])", "messages[0].role: required", "messages"},
      {R"("messages":[{"role":5,"content":"a"}])", "messages[0].role: expected a string, found 5", "messages"},
      {R"("messages":[{"role":"user"}])", "messages[0].content: required", "messages"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"user","content":{"a":1}}])",
       "messages[1].content: expected a string or a list of parts, found object", "messages"},
      {R"("messages":[{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0].type: required", "messages"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text: required",
       "messages"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}])",
       "fetching image URLs is off", "messages"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":"file:///etc/passwd"}]}])",
       "expected a data: URI", "messages"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,@@"}]}])",
       "bad base64", "messages"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64"}]}])",
       "without a comma", "messages"},
      {R"("messages":[{"role":"assistant","content":null}])", "an assistant message needs content", "messages"},
      {R"("messages":[{"role":"assistant","tool_calls":[{}]}])", "messages[0].tool_calls[0].function: required",
       "messages"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{}}]}])", "a function needs a name", "messages"},
      {R"("messages":[{"role":"latest_reminder","content":[]}])", "messages[0].content", "messages"},
  };
  for (const auto& r : rows) {
    CAPTURE(r.fields);
    const auto p = parse_chat_request("{" + r.fields + "}", *facts, "");
    REQUIRE(p.refusal);
    CHECK(p.refusal->status == 400);
    CHECK_MESSAGE(p.refusal->message.find(r.message) != std::string::npos, p.refusal->message);
    CHECK(p.refusal->param == r.param);
  }
  for (const std::string& body : {std::string(), std::string("[]"), std::string("null"), std::string("{\"messages\":"),
                                  std::string("{\"temperature\":NaN}"), std::string("{\"a\":\"\\ud800\"}")}) {
    const auto p = parse_chat_request(body, *facts, "");
    REQUIRE(p.refusal);
    CHECK(p.refusal->status == 400);
    CHECK(p.refusal->message.find("The request body") == 0);
  }
}

TEST_CASE("openai_request: no more than 200 characters of a client's text come back in an error") {
  for (const std::string& fields :
       {R"("model":")" + std::string(5000, 'm') + "\"", R"("tools":[{"type":")" + std::string(5000, 't') + "\"}]",
        R"("reasoning_effort":")" + std::string(5000, 'e') + "\""})
    CHECK(chat(fields).refusal->message.size() < 400);
}

TEST_CASE("openai_request: defaults, null as absent, unknown fields ignored") {
  const auto p = chat(
      R"("temperature":null,"stop":null,"tools":null,"stream_options":null,"n":null,"unknown":{"x":1},"user":"u","store":true,"metadata":{})");
  REQUIRE(!p.refusal);
  const auto& r = p.value.request;
  CHECK(r.sampling.temperature == 1);
  CHECK(r.sampling.top_p == doctest::Approx(0.95));
  CHECK(r.sampling.n_logprobs == -1);
  CHECK(r.max_tokens == -1);
  CHECK(r.n == 1);
  CHECK(r.stop.empty());
  CHECK(r.chat.thinking);
  CHECK(r.chat.choice == tool_choice::none);
  CHECK(!p.value.style.stream);
  CHECK(p.value.style.model == "tiny");
  CHECK(p.value.style.id == "chatcmpl-id");
}

TEST_CASE("openai_request: L05, no seed means another one each time; a seed is kept") {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 20; i++) seeds.insert(chat("").value.request.sampling.seed);
  CHECK(seeds.size() == 20);
  CHECK(chat(R"("seed":7)").value.request.sampling.seed == 7);
  CHECK(chat(R"("seed":-1)").value.request.sampling.seed == ~uint64_t{0});
}

TEST_CASE("openai_request: sampling values arrive") {
  const auto p = chat(
      R"("temperature":0.001,"top_p":0.5,"top_k":-1,"min_p":0.1,"frequency_penalty":1,"presence_penalty":-1,"repetition_penalty":1.2,"logit_bias":{"5":-200,"7":3},"stop":["a","b"],"stop_token_ids":[9],"min_tokens":2,"max_tokens":7.0,"max_completion_tokens":9,"n":3,"logprobs":true,"top_logprobs":4,"ignore_eos":true,"include_stop_str_in_output":true,"bad_words":["ab"],"allowed_token_ids":[1,2],"truncate_prompt_tokens":-1,"cache_salt":"s","priority":-4,"return_token_ids":true,"return_prompt_text":true)");
  REQUIRE(!p.refusal);
  const auto& r = p.value.request;
  CHECK(r.sampling.temperature == doctest::Approx(0.01)); // clamped, as vLLM does
  CHECK(chat(R"("temperature":0)").value.request.sampling.temperature == 0);
  CHECK(r.sampling.top_k == 0);
  CHECK(r.sampling.logit_bias[0] == std::pair<int32_t, float>{5, -100.0f});
  CHECK(r.stop.size() == 2);
  CHECK(r.sampling.stop_ids == std::vector<int32_t>{9});
  CHECK(r.max_tokens == 9);
  CHECK(r.sampling.n_logprobs == 4);
  CHECK(r.sampling.bad_words.size() == 2);
  CHECK(r.truncate_prompt_tokens == -1);
  CHECK(r.priority == 0);
  CHECK(r.wants_prompt_ids);
  CHECK(r.wants_prompt_text);
}

TEST_CASE("openai_request: B04, B05, effort names and numbers, thinking precedence") {
  struct row {
    std::string fields;
    bool thinking;
    int effort;
  };
  const row rows[] = {{"", true, 75},
                      {R"("reasoning_effort":"low")", true, 50},
                      {R"("reasoning_effort":"minimal")", true, 50},
                      {R"("reasoning_effort":"medium")", true, 75},
                      {R"("reasoning_effort":"high")", true, 75},
                      {R"("reasoning_effort":"xhigh")", true, 75},
                      {R"("reasoning_effort":"max")", true, 100},
                      {R"("reasoning_effort":1)", true, 1},
                      {R"("reasoning_effort":100)", true, 100},
                      {R"("reasoning_effort":50.0)", true, 50},
                      {R"("thinking_token_budget":-1)", true, 75},
                      {R"("reasoning_effort":"88")", true, 88},
                      {R"("reasoning_effort":"none")", false, 75},
                      {R"("reasoning":{"effort":"low"})", true, 50},
                      {R"("reasoning":{"enabled":false})", false, 75},
                      {R"("chat_template_kwargs":{"thinking":true},"reasoning_effort":"none")", false, 75},
                      {R"("chat_template_kwargs":{"thinking":false},"reasoning_effort":"high")", false, 75},
                      {R"("chat_template_kwargs":{"thinking":false,"enable_thinking":true})", true, 75},
                      {R"("chat_template_kwargs":{"reasoning_effort":"low"},"reasoning_effort":"max")", true, 100},
                      {R"("chat_template_kwargs":{"reasoning_effort":"none"})", false, 75},
                      {R"("thinking":{"type":"disabled"})", false, 75},
                      {R"("thinking":{"type":"adaptive"})", true, 75},
                      {R"("thinking":{"type":"disabled"},"chat_template_kwargs":{"thinking":true})", true, 75}};
  for (const auto& r : rows) {
    CAPTURE(r.fields);
    const auto p = chat(r.fields);
    REQUIRE(!p.refusal);
    CHECK(p.value.request.chat.thinking == r.thinking);
    CHECK(p.value.request.chat.effort == r.effort);
  }
  auto facts = make_test_facts();
  facts->config.effort_table = "vllm0909";
  CHECK(chat("", *facts).value.request.chat.effort == 50);
  CHECK(chat(R"("reasoning_effort":"low")", *facts).value.request.chat.effort == 25);
  CHECK(chat(R"("reasoning_effort":"medium")", *facts).refusal);
  facts->config.default_thinking = false;
  CHECK(!chat("", *facts).value.request.chat.thinking);
  CHECK(chat(R"("reasoning_effort":"high")", *facts).value.request.chat.thinking);
}

TEST_CASE("openai_request: tools, their parameter types and choices") {
  const auto p = chat(tools + R"(,"parallel_tool_calls":false)");
  REQUIRE(!p.refusal);
  const auto& c = p.value.request.chat;
  REQUIRE(c.tools.size() == 1);
  CHECK(c.choice == tool_choice::automatic);
  CHECK(!c.parallel_tool_calls);
  CHECK(c.tools[0].parameters[0] == std::pair<std::string, parameter_type>{"a", parameter_type::integer});
  CHECK(c.tools[0].parameters[1].second == parameter_type::any);
  CHECK(chat(tools + R"(,"tool_choice":"none")").value.request.chat.tools.empty());
  CHECK(!chat(R"("tools":[])").refusal);
  CHECK(!chat(R"("tool_choice":"auto")").refusal);
  auto strict = make_test_facts();
  strict->config.strict_openai = true;
  CHECK(chat(R"("tools":[])", *strict).refusal->message.find("must not be an empty array") != std::string::npos);
  CHECK(chat(R"("functions":[{"name":"f"}],"function_call":"auto")").value.request.chat.tools.size() == 1);
}

TEST_CASE("openai_request: A12, any description is taken, fast") {
  std::string text = "quotes \\\" back \\\\ ::= ";
  text += "\\uff5cDSML\\uff5c ";
  text += std::string(1 << 20, 'd');
  CHECK(!chat(R"("tools":[{"type":"function","function":{"name":"f","description":")" + text +
              R"(","parameters":{"$ref":"#","pattern":"(","oneOf":[{"$ref":"#/x"}]}}}])")
             .refusal);
}

TEST_CASE("openai_request: B02, B03, reasoning under either name or absent") {
  const auto read = [&](const std::string& message) {
    auto p =
        parse_chat_request(R"({"messages":[{"role":"user","content":"q"},)" + message + "]}", *make_test_facts(), "");
    REQUIRE(!p.refusal);
    return p.value.request.chat.messages[1].reasoning;
  };
  CHECK(read(R"({"role":"assistant","content":"a","reasoning_content":"r"})") == "r");
  CHECK(read(R"({"role":"assistant","content":"a","reasoning":"r"})") == "r");
  CHECK(read(R"({"role":"assistant","content":"a","reasoning":"x","reasoning_content":"r"})") == "r");
  CHECK(read(R"({"role":"assistant","content":[{"type":"thinking","thinking":"r"},{"type":"text","text":"a"}]})") ==
        "r");
  CHECK(
      read(R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]})")
          .empty());
}

TEST_CASE("openai_request: L03, continue by flag or by prefix") {
  const auto read = [&](const std::string& last, const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"q"},)" + last + "]" + more + "}",
                              *make_test_facts(), "");
  };
  const std::string a = R"({"role":"assistant","content":"a"})",
                    prefixed = R"({"role":"assistant","content":"a","prefix":true})";
  CHECK(read(a, R"(,"continue_final_message":true,"add_generation_prompt":false)")
            .value.request.chat.continue_final_message);
  CHECK(read(prefixed, "").value.request.chat.continue_final_message);
  CHECK(!read(prefixed, "").value.request.chat.add_generation_prompt);
  CHECK(!read(a, "").value.request.chat.continue_final_message);
  CHECK(read(a, R"(,"echo":true)").value.style.prefix_text == "a");
}

TEST_CASE("openai_request: images become files in request order") {
  auto facts = make_test_facts();
  const std::string image = R"({"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}})";
  const std::string body = R"({"messages":[{"role":"user","content":[)" + image +
                           R"(,{"type":"input_image","image_url":"data:text/plain,a%20b"}]}]})";
  const auto p = parse_chat_request(body, *facts, "");
  REQUIRE(!p.refusal);
  CHECK(p.value.request.image_files == std::vector<std::string>{"hi", "a b"});
  facts->config.max_images = 1;
  CHECK(parse_chat_request(body, *facts, "").refusal->message == "At most 1 image(s) may be provided in one prompt.");
  facts->config.max_images = 2;
  facts->config.max_image_bytes = 2;
  CHECK(parse_chat_request(body, *facts, "").refusal->message.find("3 bytes, the limit is 2 bytes") !=
        std::string::npos);
}

TEST_CASE("openai_request: render takes what a run refuses to constrain") {
  const auto facts = make_test_facts();
  const std::string body = "{" + user + "," + tools + R"(,"tool_choice":"required","guided_json":{}})";
  CHECK(parse_chat_request(body, *facts, "").refusal);
  CHECK(!parse_chat_request(body, *facts, "", request_use::render).refusal);
}
