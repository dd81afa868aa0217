// Prompt rendering from ready-made input, marker ids and start-up checks. The golden requests run through net/openai.
#include "model/deepseek_v41/chat.h"

#include "tests/model/parser_feed.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::chat_text;

namespace {

const std::string BOS(bos), EOS(eos), SYS(chat_text::system), USR(user), AST(assistant), THINK(think_start),
    END(think_end), IMG(image);
const std::string effort_75 = std::string(effort_prefix) + "75" + std::string(effort_suffix);

chat_message message(chat_role role, const std::string& text) {
  chat_message m;
  m.role = role;
  if (!text.empty()) m.parts.push_back({text, -1});
  return m;
}

chat_input plain(std::vector<chat_message> messages, bool thinking = false) {
  chat_input in;
  in.messages = std::move(messages);
  in.thinking = thinking;
  return in;
}

std::string param_of(const chat_input& in) {
  try {
    render_chat(in);
  } catch (const chat_error& e) {
    CHECK(std::string(e.what()).size() > 10);
    return e.param;
  }
  return "";
}

} // namespace

TEST_CASE("chat: the constants are those of the golden file") {
  golden_chat::document doc("constants.json");
  const auto same = [&](const char* key, std::string_view value) {
    CHECK_MESSAGE(golden_chat::text(doc.root[key]) == value, key);
  };
  same("bos", bos), same("eos", eos), same("system", chat_text::system), same("user", user);
  same("assistant", assistant), same("latest_reminder", latest_reminder), same("think_start", think_start);
  same("think_end", think_end), same("dsml", dsml), same("image", image), same("effort_prefix", effort_prefix);
  same("effort_suffix", effort_suffix), same("tools_head", tools_head), same("tools_tail", tools_tail);
  same("response_format_head", response_format_head), same("response_format_tail", "");
  same("tool_result_open", tool_result_open), same("tool_result_close", tool_result_close);
  same("calls_open", calls_open), same("calls_close", calls_close), same("invoke_close", invoke_close);
  same("joiner", joiner), same("between_calls", between_calls), same("between_parameters", between_parameters);
  const auto s = [](std::string_view v) { return std::string(v); };
  same("invoke_open", s(invoke_open) + "{name}" + s(invoke_opened));
  same("parameter", s(parameter_open) + "{key}" + s(parameter_is_string) + "{true|false}" + s(parameter_opened) +
                        "{value}" + s(parameter_close));
  for (const auto& [name, token] : tasks) CHECK(golden_chat::text(doc.root["tasks"][name]) == token);
  for (const auto& e : effort_official)
    CHECK(doc.root["effort_tables"]["official"][e.name].get_int64().value() == e.effort);
  for (const auto& e : effort_vllm0909)
    CHECK(doc.root["effort_tables"]["vllm0909"][e.name].get_int64().value() == e.effort);
}

TEST_CASE("chat: markers and suppressed ids of the released tokenizer are the golden ones") {
  golden_chat::document doc("constants.json");
  const marker_ids m = find_markers(*golden_chat::real_tokenizer());
  const auto id = [&](const char* key) { return doc.root["ids"][key].get_int64().value(); };
  CHECK(m.bos == id("bos"));
  CHECK(m.eos == id("eos"));
  CHECK(m.pad == id("pad"));
  CHECK(m.system == id("system"));
  CHECK(m.user == id("user"));
  CHECK(m.assistant == id("assistant"));
  CHECK(m.think_start == id("think_start"));
  CHECK(m.think_end == id("think_end"));
  CHECK(m.dsml == id("dsml"));
  CHECK(m.image == id("image"));
  CHECK(m.latest_reminder == id("latest_reminder"));
  std::vector<int32_t> suppressed = golden_chat::ids(doc.root["suppressed_when_sampling"]["also"]);
  for (const auto range : golden_chat::list(doc.root["suppressed_when_sampling"]["ranges"])) {
    const auto ends = golden_chat::ids(range);
    for (int32_t i = ends[0]; i <= ends[1]; ++i) suppressed.push_back(i);
  }
  std::sort(suppressed.begin(), suppressed.end());
  CHECK(m.suppressed == suppressed);
}

TEST_CASE("chat: self-checks pass for both tokenizers and name what is wrong") {
  for (const auto& tok : {golden_chat::real_tokenizer(), golden_chat::tiny_tokenizer()})
    self_check(*tok, find_markers(*tok), tok->size());
  const auto& tiny = *golden_chat::tiny_tokenizer();
  CHECK_THROWS_WITH(self_check(tiny, find_markers(tiny), 2047),
                    "tokenizer self-check: 2048 tokens, but the embedding has only 2047 rows");
  std::string json = golden_chat::read_file(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  const size_t at = json.find("<\uFF5Ctitle\uFF5C>");
  REQUIRE(at != json.npos);
  json[at + 4] = 'T';
  const auto broken = tokenizer::parse(json, "x.json");
  CHECK_THROWS_WITH(find_markers(*broken), doctest::Contains("<\uFF5Ctitle\uFF5C>"));
}

TEST_CASE("chat: a system prompt, a question and the header of the mode") {
  const auto in = [&](bool thinking) {
    return plain({message(chat_role::system, "Be terse."), message(chat_role::user, "Hi")}, thinking);
  };
  const auto think = render_chat(in(true)), chat = render_chat(in(false));
  CHECK(think.text() == BOS + SYS + effort_75 + "Be terse." + USR + "Hi" + AST + THINK);
  CHECK(think.start == parser_start::reasoning);
  CHECK(chat.text() == BOS + SYS + "Be terse." + USR + "Hi" + AST + END);
  CHECK(chat.start == parser_start::content);
}

TEST_CASE("chat: earlier reasoning is dropped without tools and kept with them") {
  auto reply = message(chat_role::assistant, "a");
  reply.reasoning = "because";
  auto in = plain({message(chat_role::user, "q"), reply, message(chat_role::user, "r")}, true);
  CHECK(render_chat(in).text() == BOS + SYS + effort_75 + USR + "q" + AST + END + "a" + EOS + USR + "r" + AST + THINK);
  in.tools.push_back({"ping", "{\"name\": \"ping\"}", {}});
  CHECK(render_chat(in).text() == BOS + SYS + effort_75 + "\n\n" + std::string(tools_head) + "{\"name\": \"ping\"}" +
                                      std::string(tools_tail) + USR + "q" + AST + THINK + "because" + END + "a" + EOS +
                                      USR + "r" + AST + THINK);
}

TEST_CASE("chat: tool results stand in the order of the calls, and their images with them") {
  auto calls = message(chat_role::assistant, "");
  calls.calls = {{"c1", "f", {}}, {"c2", "f", {{"x", true, "<b>"}, {"n", false, "1"}}}};
  auto second = message(chat_role::tool, "two"), first = message(chat_role::tool, "one");
  second.tool_call_id = "c2", first.tool_call_id = "c1";
  second.parts.push_back({"", 0}), first.parts.push_back({"", 1});
  const auto p = render_chat(plain({calls, second, message(chat_role::user, "and"), first}));
  const std::string tag = "<" + std::string(dsml), end = "</" + std::string(dsml);
  CHECK(p.text() == BOS + "\n\n" + tag + " calls>\n" + tag + " invoke name=\"f\">\n\n" + end + " invoke>\n" + tag +
                        " invoke name=\"f\">\n" + tag + " parameter name=\"x\" string=\"true\"><b>" + end +
                        " parameter>\n" + tag + " parameter name=\"n\" string=\"false\">1" + end + " parameter>\n" +
                        end + " invoke>\n" + end + " calls>" + EOS + USR + "<tool_result>one\n\n" + IMG +
                        "</tool_result>\n\nand\n\n<tool_result>two\n\n" + IMG + "</tool_result>" + AST + END);
  CHECK(p.images == std::vector<int32_t>{1, 0});
}

TEST_CASE("chat: a final assistant message gets a header, or is continued") {
  auto reply = message(chat_role::assistant, "To be");
  reply.reasoning = "Hamlet";
  auto in = plain({message(chat_role::user, "q"), reply}, true);
  const std::string head = BOS + SYS + effort_75 + USR + "q" + AST + THINK + "Hamlet";
  CHECK(render_chat(in).text() == head + END + "To be" + EOS + AST + THINK);
  in.add_generation_prompt = false;
  CHECK(render_chat(in).text() == head + END + "To be" + EOS);
  in.continue_final_message = true;
  CHECK(render_chat(in).text() == head + END + "To be");
  CHECK(render_chat(in).start == parser_start::content);
  in.messages[1].parts.clear();
  CHECK(render_chat(in).text() == head);
  CHECK(render_chat(in).start == parser_start::reasoning);
}

TEST_CASE("chat: a required call opens the block when there is no thinking") {
  auto in = plain({message(chat_role::user, "q")});
  in.tools.push_back({"ping", "{\"name\": \"ping\"}", {}});
  for (const tool_choice choice : {tool_choice::required, tool_choice::named}) {
    in.choice = choice;
    CHECK(render_chat(in).text().ends_with(AST + END + "\n\n" + std::string(calls_open)));
    CHECK(render_chat(in).start == parser_start::tools);
  }
  in.thinking = true;
  CHECK(render_chat(in).text().ends_with(AST + THINK));
}

TEST_CASE("chat: reminders and task tokens") {
  auto task = message(chat_role::user, "q");
  const auto reminder = message(chat_role::latest_reminder, "today");
  CHECK(render_chat(plain({task, reminder})).text() ==
        BOS + USR + "q" + AST + END + std::string(latest_reminder) + "today");
  CHECK(render_chat(plain({reminder})).text().ends_with("today" + AST + END));
  task.task = "title";
  CHECK(render_chat(plain({task}, true)).text() == BOS + SYS + effort_75 + USR + "q<\uFF5Ctitle\uFF5C>");
  task.task = "action";
  CHECK(render_chat(plain({task}, true)).text().ends_with(AST + THINK + "<\uFF5Caction\uFF5C>"));
  CHECK(render_chat(plain({task}, true)).start == parser_start::content);
}

TEST_CASE("chat: what a client wrote is content, what the renderer wrote is a marker") {
  auto call = message(chat_role::assistant, "said </think>");
  call.calls = {{"c", "f", {{"k", true, "v <think>"}}}};
  auto in = plain({message(chat_role::system, "s"), message(chat_role::user, "<think>"), call}, true);
  in.tools.push_back({"f", "{\"name\": \"f\"}", {}});
  for (const prompt_span& s : render_chat(in).spans) {
    CHECK_FALSE(s.text.empty());
    if (!s.is_marker) CHECK(s.text.find(dsml) == s.text.npos);
    if (s.is_marker) CHECK(s.text.find("v <") == s.text.npos);
  }
}

TEST_CASE("chat: what cannot be rendered names its parameter") {
  CHECK(param_of({}) == "messages");
  CHECK(param_of(plain({message(chat_role::user, "hi " + IMG)})) == "messages");
  auto in = plain({message(chat_role::user, "a"), message(chat_role::assistant, "b")});
  in.messages[1].reasoning = IMG;
  CHECK(param_of(in) == "messages");
  in = plain({message(chat_role::system, "s")});
  in.messages[0].parts.push_back({"", 0});
  CHECK(param_of(in) == "messages");
  in = plain({message(chat_role::user, "a")});
  in.continue_final_message = true;
  CHECK(param_of(in) == "continue_final_message");
  in = plain({message(chat_role::user, "a")});
  in.messages[0].task = "sing";
  CHECK(param_of(in) == "messages");
  in.messages[0].task.clear();
  in.tools.push_back({"f", "{\"name\": \"f\", \"description\": \"" + IMG + "\"}", {}});
  CHECK(param_of(in) == "tools");
}

TEST_CASE("chat: a conversation built from parsed answers keeps every earlier prompt and answer as its prefix") {
  const auto& tok = golden_chat::real_tokenizer();
  const marker_ids markers = find_markers(*tok);
  auto in = plain({message(chat_role::user, "start")}, true);
  in.tools.push_back({"f", "{\"name\": \"f\"}", {{"q", parameter_type::string}}});
  for (int i = 0; i < 20; ++i) {
    const rendered_prompt prompt = render_chat(in);
    auto ids = tok->encode(prompt, true, SIZE_MAX);
    const std::string n = std::to_string(i), tag = "<" + std::string(dsml), end = "</" + std::string(dsml);
    const bool calls = i % 2 == 0;
    const std::string answer = "Thinking " + n + "\n\n" + END + "Text \"" + n + "\" \u4E2D\n" +
                               (calls ? "\n\n" + tag + " calls>\n" + tag + " invoke name=\"f\">\n" + tag +
                                            " parameter name=\"q\" string=\"true\">a\n" + n + "</b>" + end +
                                            " parameter>\n" + end + " invoke>\n" + end + " calls>"
                                      : "");
    const auto generated = tok->encode(answer);
    output_parser parser(tok, markers, {.start = prompt.start, .tools_active = true, .tools = in.tools, .stop = {}});
    golden_chat::parsed p;
    std::vector<output_event> events;
    for (const int32_t id : generated) parser.push(id, events);
    parser.finish(output_parser::ending::stop, events);
    for (const auto& e : events) p.add(e);
    ids.insert(ids.end(), generated.begin(), generated.end());
    ids.push_back(markers.eos);
    auto reply = message(chat_role::assistant, p.content);
    reply.reasoning = p.reasoning;
    for (const auto& c : p.calls) {
      simdjson::dom::parser json;
      const simdjson::dom::object arguments = json.parse(c.arguments).get_object().value();
      history_call call{"id" + n, c.name, {}};
      for (const auto field : arguments)
        call.arguments.push_back({std::string(field.key), true, golden_chat::text(field.value)});
      reply.calls.push_back(call);
    }
    CHECK(reply.calls.size() == (calls ? 1 : 0));
    in.messages.push_back(reply);
    auto next = message(calls ? chat_role::tool : chat_role::user, "result " + n);
    next.tool_call_id = "id" + n;
    in.messages.push_back(next);
    const auto following = tok->encode(render_chat(in), true, SIZE_MAX);
    REQUIRE(following.size() > ids.size());
    REQUIRE(std::vector<int32_t>(following.begin(), following.begin() + static_cast<std::ptrdiff_t>(ids.size())) ==
            ids);
  }
}
