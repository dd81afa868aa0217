// Token ids of a request: length checks and their exact words, truncation, image spans, markers in text.
#include "actors/prompt_builder.h"
#include "tests/actors/doubles.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

const std::string marker = "<\uFF5Cdeepseek_image\uFF5C>";

prompt_builder builder(int64_t context = 64, void (*change)(prepare_config&) = nullptr) {
  prepare_config c;
  c.max_context = context;
  c.info.vocabulary = tiny_text()->words()->size();
  c.info.image_token = *tiny_text()->words()->added_id(marker);
  c.info.has_vision = true;
  if (change) change(c);
  return {c, tiny_text()};
}

chat_request completion(std::vector<int32_t> ids, int64_t max_tokens = -1) {
  chat_request r;
  r.is_chat = false;
  r.prompt_ids = {std::move(ids)};
  r.max_tokens = max_tokens;
  return r;
}

chat_request chat(std::vector<content_part> parts) {
  chat_request r;
  r.chat.thinking = false;
  r.chat.messages.emplace_back().parts = std::move(parts);
  return r;
}

} // namespace

TEST_CASE("prompt_builder: a prompt that leaves no room is refused in the words clients look for") {
  const auto b = builder();
  const auto long_prompt = b.prepare(completion(std::vector<int32_t>(64, 5)));
  CHECK(long_prompt.failure.status == 400);
  CHECK(long_prompt.failure.type == "BadRequestError");
  CHECK(long_prompt.failure.param == "input_tokens");
  CHECK(
      long_prompt.failure.message ==
      "This model's maximum context length is 64 tokens. However, you requested 0 output tokens and your prompt "
      "contains 64 input tokens, for a total of 64 tokens. Please reduce the length of the input prompt or the number "
      "of requested output tokens.");
  CHECK(b.prepare(completion(std::vector<int32_t>(63, 5))).prompts.at(0).max_tokens == 1);
  const auto both = b.prepare(completion(std::vector<int32_t>(60, 5), 5));
  CHECK(
      both.failure.message.find("requested 5 output tokens and your prompt contains 60 input tokens, for a total of 65 "
                                "tokens") != std::string::npos);
  CHECK(b.prepare(completion(std::vector<int32_t>(60, 5), 4)).failure.status == 0);
  const auto clamping = builder(64, [](prepare_config& c) { c.values.clamp_max_tokens = true; });
  CHECK(clamping.prepare(completion(std::vector<int32_t>(60, 5), 50)).prompts.at(0).max_tokens == 4);
  auto text = completion({});
  text.prompt_ids.clear();
  for (int i = 0; i < 2000; ++i) text.prompts.resize(1), text.prompts[0] += "word ";
  CHECK(b.prepare(text).failure.message.find("contains at least ") != std::string::npos);
}

TEST_CASE("prompt_builder: a default of max_tokens gives way to the context, what the client set does not") {
  const auto b = builder();
  auto r = completion(std::vector<int32_t>(60, 5));
  r.default_max_tokens = 16;
  const auto near_end = b.prepare(r);
  REQUIRE(near_end.failure.status == 0);
  CHECK(near_end.prompts.at(0).max_tokens == 4);
  r.prompt_ids = {std::vector<int32_t>(10, 5)};
  CHECK(b.prepare(r).prompts.at(0).max_tokens == 16);
  r.prompt_ids = {std::vector<int32_t>(60, 5)};
  r.max_tokens = 16;
  CHECK(b.prepare(r).failure.status == 400);
  r.max_tokens = -1;
  r.truncate_prompt_tokens = -1;
  CHECK(b.prepare(r).prompts.at(0).ids.size() == 48);
}

TEST_CASE("prompt_builder: the prompt's text comes along where it is asked for") {
  const auto b = builder(256);
  auto r = chat({{"Hello", -1}});
  CHECK(b.prepare(r).prompts.at(0).rendered.empty());
  r.wants_prompt_text = true;
  const auto p = b.prepare(r);
  CHECK(p.prompts.at(0).rendered.find("Hello") != std::string::npos);
  CHECK(tiny_text()->words()->encode(p.prompts[0].rendered) == p.prompts[0].ids);
  auto c = completion({5, 6});
  c.wants_prompt_text = true;
  CHECK(b.prepare(c).prompts.at(0).rendered == tiny_text()->words()->decode(std::vector<int32_t>{5, 6}, false));
}

TEST_CASE("prompt_builder: truncation keeps the last tokens") {
  const auto b = builder();
  std::vector<int32_t> ids(100);
  for (int i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = 300 + i;
  auto r = completion(ids, 10);
  r.truncate_prompt_tokens = 3;
  CHECK(b.prepare(r).prompts.at(0).ids == std::vector<int32_t>{397, 398, 399});
  r.truncate_prompt_tokens = -1;
  CHECK(b.prepare(r).prompts.at(0).ids.size() == 54);
}

TEST_CASE("prompt_builder: empty prompts, foreign ids and stray placeholders are refused") {
  const auto b = builder();
  CHECK(b.prepare(completion({})).failure.status == 400);
  CHECK(b.prepare(completion({5}, 0)).failure.param == "max_tokens");
  auto none = completion({5});
  none.prompt_ids.clear();
  CHECK(b.prepare(none).failure.param == "prompt");
  CHECK(b.prepare(completion({1 << 30})).failure.message.find("out of vocabulary") != std::string::npos);
  const auto marked = b.prepare(completion({*tiny_text()->words()->added_id(marker)})).failure;
  CHECK(marked.status == 400);
  CHECK(marked.param == "prompt");
  CHECK(marked.message.find("contains the image marker") != std::string::npos);
}

TEST_CASE("prompt_builder: each image placeholder becomes its span, in prompt order") {
  const auto b = builder(256);
  auto r = chat({{"a", -1}, {"", 1}, {"b", -1}, {"", 0}});
  r.image_files = {"123", "12345"};
  const auto p = b.prepare(r);
  REQUIRE(p.failure.status == 0);
  REQUIRE(p.prompts.at(0).images.size() == 2);
  const auto& places = p.prompts[0].images;
  const auto& ids = p.prompts[0].ids;
  CHECK(places[0].grid_w == 5);
  CHECK(places[1].grid_w == 3);
  for (const auto& place : places) {
    const int64_t n = int64_t{place.grid_h} * (place.grid_w + 1) + 2;
    for (int64_t i = 0; i < n; ++i)
      CHECK(ids.at(static_cast<size_t>(place.start + i)) == *tiny_text()->words()->added_id(marker));
  }
  CHECK(p.images.size() == 2);
  CHECK(std::count(ids.begin(), ids.end(), *tiny_text()->words()->added_id(marker)) == 8 + 6);
  r.truncate_prompt_tokens = static_cast<int64_t>(ids.size()) - places[0].start - 2; // cuts into the first image
  const auto cut = b.prepare(r);
  REQUIRE(cut.prompts.at(0).images.size() == 1);
  CHECK(cut.prompts[0].images[0].grid_w == 3);
  CHECK(cut.prompts[0].ids.at(static_cast<size_t>(cut.prompts[0].images[0].start)) ==
        *tiny_text()->words()->added_id(marker));
}

TEST_CASE("prompt_builder: image limits and a model without eyes") {
  auto r = chat({{"", 0}});
  r.image_files = {"123"};
  CHECK(builder(256, [](prepare_config& c) { c.values.max_images = 0; }).prepare(r).failure.status == 400);
  CHECK(builder(256, [](prepare_config& c) { c.info.has_vision = false; }).prepare(r).failure.status == 400);
}

TEST_CASE("prompt_builder: the image marker in text is refused or quoted, as configured") {
  const auto r = chat({{"see " + marker, -1}});
  const auto refused = builder(256).prepare(r);
  CHECK(refused.failure.status == 400);
  CHECK(refused.failure.param == "messages");
  const auto quoted = builder(256, [](prepare_config& c) { c.values.image_marker_text = "quote"; }).prepare(r);
  CHECK(quoted.failure.status == 0);
  CHECK(quoted.prompts.at(0).images.empty());
  text_question render;
  render.request = r;
  const auto shown = builder(256, [](prepare_config& c) { c.values.image_marker_text = "quote"; }).answer(render);
  CHECK(shown.failure.status == 0);
  CHECK(shown.text.find(marker) == std::string::npos);
  CHECK(shown.text.find("see < \uFF5Cdeepseek_image\uFF5C >") != std::string::npos);
}

TEST_CASE("prompt_builder: special tokens in a client's text count or not, as configured") {
  const auto r = chat({{"</think>", -1}});
  const auto n_marks = [&](const turn_prepared& p) {
    return std::count(p.prompts.at(0).ids.begin(), p.prompts[0].ids.end(), tiny_text()->think_end_id());
  };
  const auto parse = n_marks(builder(256).prepare(r));
  const auto plain = n_marks(builder(256, [](prepare_config& c) { c.values.text_specials = "plain"; }).prepare(r));
  CHECK(parse == plain + 1);
  text_question render;
  render.request = r;
  const auto b = builder(256, [](prepare_config& c) { c.values.text_specials = "plain"; });
  CHECK(b.answer(render).ids == b.prepare(r).prompts.at(0).ids);
}

TEST_CASE("prompt_builder: questions that run nothing") {
  const auto b = builder(256);
  text_question q;
  q.what = text_question::kind::tokenize_text;
  q.text = "Hello there";
  q.wants_token_strings = true;
  const auto tokens = b.answer(q);
  CHECK(tokens.ids == tiny_text()->words()->encode("Hello there"));
  CHECK(tokens.token_strings.size() == tokens.ids.size());
  q.what = text_question::kind::detokenize;
  q.ids = tokens.ids;
  CHECK(b.answer(q).text == "Hello there");
  q.ids = {-4};
  CHECK(b.answer(q).failure.status == 400);
  q.what = text_question::kind::render;
  q.request = chat({{"Hi", -1}});
  const auto rendered = b.answer(q);
  CHECK(rendered.ids == tiny_text()->words()->encode(rendered.text));
  CHECK(rendered.start == parser_start::content);
  q.request.chat.messages.clear();
  CHECK(b.answer(q).failure.param == "messages");
}
