// Rendering, tokenising, image spans, truncation and the context check (api.md 2.2, chat.md 2.12 and 4).
#include "actors/prompt_builder.h"

#include "model/deepseek_v41/chat.h"
#include "model/image.h"
#include "storage/log.h"

#include <algorithm>
#include <limits>
#include <span>

namespace troupe {

namespace {

// A request that the client can mend; caught in prepare() and answer().
struct refused_request {
  std::string message, param;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// chat.md 2.12: a marker that stands in text is written with inner spaces, so that it stands for nothing.
void quote_marker(chat_input& chat, std::string_view marker) {
  if (marker.size() < 3) return;
  const std::string quoted = std::string(marker.substr(0, 1)) + " " + std::string(marker.substr(1, marker.size() - 2)) +
                             " " + std::string(marker.substr(marker.size() - 1));
  for (auto& m : chat.messages) {
    for (auto& p : m.parts) replace_all(p.text, marker, quoted);
    replace_all(m.reasoning, marker, quoted);
    for (auto& c : m.calls)
      for (auto& a : c.arguments) replace_all(a.value, marker, quoted);
  }
  for (auto& t : chat.tools) replace_all(t.schema_line, marker, quoted);
  replace_all(chat.response_format, marker, quoted);
}

template <class answer_type, class work> answer_type guarded(answer_type& on_failure, work&& run) {
  api_error& e = on_failure.failure;
  try {
    return run();
  } catch (const refused_request& r) {
    e = {400, "BadRequestError", r.message, r.param, 0};
  } catch (const chat_error& r) { e = {400, "BadRequestError", r.what(), r.param, 0}; } catch (const image_error& r) {
    e = {400, "BadRequestError", r.what(), "messages", 0};
  } catch (const std::exception& r) {
    spdlog::error("prepare: {}", r.what());
    e = {500, "InternalServerError", "The prompt could not be prepared.", {}, 0};
  }
  return std::move(on_failure);
}

} // namespace

prompt_builder::prompt_builder(prepare_config config, std::shared_ptr<const text_side> text)
    : config_(std::move(config)), text_(std::move(text)) {}

rendered_prompt prompt_builder::render(chat_input chat) const {
  if (config_.values.image_marker_text == "quote" && config_.info.image_token >= 0)
    quote_marker(chat, text_->words()->bytes(config_.info.image_token));
  return text_->render(chat);
}

prompt_builder::encoded prompt_builder::encode(const rendered_prompt& prompt, const chat_request& request) const {
  const bool keeps_tail = request.truncate_prompt_tokens != -2;
  const auto limit = keeps_tail ? std::numeric_limits<size_t>::max() : static_cast<size_t>(config_.max_context);
  encoded out{text_->words()->encode(prompt, config_.values.text_specials == "parse", limit), false};
  out.is_cut = !keeps_tail && out.ids.size() > limit;
  return out;
}

std::vector<planned_image> prompt_builder::plan_images(const std::vector<std::string>& files,
                                                       const std::vector<int32_t>& order) const {
  if (!order.empty() && !config_.info.has_vision) throw refused_request{"This model does not take images.", "messages"};
  if (static_cast<int64_t>(order.size()) > config_.values.max_images)
    throw refused_request{"At most " + std::to_string(config_.values.max_images) + " images are accepted, got " +
                              std::to_string(order.size()) + ".",
                          "messages"};
  std::vector<planned_image> images;
  for (const int32_t i : order) images.push_back(text_->plan_image(std::as_bytes(std::span(files.at(i)))));
  return images;
}

void prompt_builder::expand(turn_prepared::prompt& p, const std::vector<planned_image>& images, bool is_chat) const {
  const int32_t marker = config_.info.image_token;
  const auto n_found = marker < 0 ? 0 : std::count(p.ids.begin(), p.ids.end(), marker);
  if (!is_chat && n_found > 0)
    throw refused_request{"The prompt contains the image marker, which this endpoint cannot take: images go into the "
                          "messages of a chat.",
                          "prompt"};
  if (n_found != static_cast<std::ptrdiff_t>(images.size()))
    throw refused_request{"The messages hold " + std::to_string(images.size()) +
                              " image(s), but the prompt made of "
                              "them has " +
                              std::to_string(n_found) + " place(s) for one.",
                          "messages"};
  if (images.empty()) return;
  std::vector<int32_t> ids;
  int32_t next = 0;
  for (const int32_t id : p.ids) {
    if (id != marker) {
      ids.push_back(id);
      continue;
    }
    const auto& image = images[static_cast<size_t>(next)];
    p.images.push_back({static_cast<int64_t>(ids.size()), image.grid_h, image.grid_w, next++, image.hash});
    ids.insert(ids.end(), static_cast<size_t>(image.n_tokens()), marker);
  }
  p.ids = std::move(ids);
}

// Keeps the last tokens; an image that would be cut goes as a whole.
void prompt_builder::truncate(turn_prepared::prompt& p, const chat_request& request) const {
  if (request.truncate_prompt_tokens == -2) return;
  const int64_t wanted = request.max_tokens < 0 ? request.default_max_tokens : request.max_tokens;
  const int64_t room = config_.max_context - std::max<int64_t>(wanted, 1);
  const int64_t keep = request.truncate_prompt_tokens < 0 ? std::max<int64_t>(room, 1) : request.truncate_prompt_tokens;
  int64_t cut = static_cast<int64_t>(p.ids.size()) - keep;
  if (cut <= 0) return;
  std::vector<image_place> kept;
  for (auto place : p.images) {
    const int64_t end = place.start + int64_t{place.grid_h} * (place.grid_w + 1) + 2;
    if (place.start < cut)
      cut = std::max(cut, end);
    else
      kept.push_back(place);
  }
  for (auto& place : kept) place.start -= cut;
  p.images = std::move(kept);
  p.ids.erase(p.ids.begin(), p.ids.begin() + std::min<int64_t>(cut, static_cast<int64_t>(p.ids.size())));
}

void prompt_builder::fit(turn_prepared::prompt& p, const chat_request& request, bool is_cut) const {
  const int64_t context = config_.max_context, n = static_cast<int64_t>(p.ids.size());
  if (n == 0) throw refused_request{"The prompt is empty: it needs at least one token.", "prompt"};
  if (request.max_tokens == 0) throw refused_request{"max_tokens must be at least 1, got 0.", "max_tokens"};
  const int64_t wanted = std::max<int64_t>(request.max_tokens, 0);
  if (n >= context || (wanted > context - n && !config_.values.clamp_max_tokens)) {
    const std::string at_least = is_cut ? "at least " : "";
    const auto number = [](int64_t x) { return std::to_string(x); };
    throw refused_request{"This model's maximum context length is " + number(context) +
                              " tokens. However, you requested " + number(wanted) +
                              " output tokens and your prompt contains " + at_least + number(n) +
                              " input tokens, for a total of " + at_least + number(n + wanted) +
                              " tokens. Please reduce the length of the input prompt or the number of requested "
                              "output tokens.",
                          "input_tokens"};
  }
  const int64_t room = context - n, spare = request.default_max_tokens < 0 ? room : request.default_max_tokens;
  p.max_tokens = std::min(request.max_tokens < 0 ? spare : wanted, room);
}

void prompt_builder::build_chat(turn_prepared& out) const {
  const auto& request = out.request;
  const auto rendered = render(request.chat);
  out.start = rendered.start;
  auto& p = out.prompts.emplace_back();
  auto coded = encode(rendered, request);
  p.ids = std::move(coded.ids);
  if (request.wants_prompt_text) p.rendered = rendered.text();
  if (coded.is_cut) fit(p, request, true); // refuses before any image is decoded
  out.images = plan_images(request.image_files, rendered.images);
  expand(p, out.images, true);
  truncate(p, request);
  fit(p, request, false);
}

void prompt_builder::build_completions(turn_prepared& out) const {
  const auto& request = out.request;
  for (const auto& text : request.prompts) {
    rendered_prompt rendered;
    rendered.spans.push_back({text, false});
    auto coded = encode(rendered, request);
    auto& p = out.prompts.emplace_back();
    p.ids = std::move(coded.ids);
    if (request.echo) p.text = text;
    if (request.wants_prompt_text) p.rendered = text;
    if (coded.is_cut) fit(p, request, true);
  }
  for (const auto& ids : request.prompt_ids) {
    for (const int32_t id : ids)
      if (id < 0 || id >= config_.info.vocabulary)
        throw refused_request{"Token id " + std::to_string(id) + " is out of vocabulary.", "prompt"};
    auto& p = out.prompts.emplace_back();
    p.ids = ids;
    if (request.echo) p.text = text_->words()->decode(ids, request.skip_special_tokens);
    if (request.wants_prompt_text) p.rendered = text_->words()->decode(ids, false);
  }
  if (out.prompts.empty()) throw refused_request{"There is no prompt.", "prompt"};
  for (auto& p : out.prompts) {
    expand(p, {}, false);
    truncate(p, request);
    fit(p, request, false);
  }
}

turn_prepared prompt_builder::build(chat_request request) const {
  turn_prepared out;
  out.request = std::move(request);
  out.request.is_chat ? build_chat(out) : build_completions(out);
  return out;
}

turn_prepared prompt_builder::prepare(chat_request request) const {
  turn_prepared failed;
  return guarded(failed, [&] { return build(std::move(request)); });
}

void prompt_builder::tokenise_chat(const text_question& q, text_answer& out) const {
  const auto rendered = render(q.request.chat);
  out.start = rendered.start;
  out.images = rendered.images;
  turn_prepared::prompt p;
  p.ids = text_->words()->encode(rendered, config_.values.text_specials == "parse", std::numeric_limits<size_t>::max());
  if (q.expand_images) expand(p, plan_images(q.request.image_files, rendered.images), true);
  out.ids = std::move(p.ids);
}

text_answer prompt_builder::answer_unchecked(const text_question& q) const {
  const auto& words = *text_->words();
  text_answer out;
  switch (q.what) {
  case text_question::kind::render: {
    if (q.request.is_chat) {
      const auto rendered = render(q.request.chat);
      out.text = rendered.text();
      out.images = rendered.images;
    } else if (!q.request.prompts.empty()) {
      out.text = q.request.prompts.front();
    }
    auto built = build(q.request);
    out.start = built.start;
    if (!built.prompts.empty()) out.ids = std::move(built.prompts.front().ids);
    if (!q.request.is_chat && q.request.prompts.empty()) out.text = words.decode(out.ids, false);
    break;
  }
  case text_question::kind::tokenize_text: out.ids = words.encode(q.text); break;
  case text_question::kind::tokenize_chat: tokenise_chat(q, out); break;
  case text_question::kind::detokenize:
    for (const int32_t id : q.ids)
      if (id < 0 || id >= config_.info.vocabulary)
        throw refused_request{"Token id " + std::to_string(id) + " is out of vocabulary.", "tokens"};
    out.text = words.decode(q.ids, false);
    break;
  }
  if (q.wants_token_strings)
    for (const int32_t id : out.ids) out.token_strings.emplace_back(words.raw(id));
  return out;
}

text_answer prompt_builder::answer(const text_question& q) const {
  text_answer failed;
  return guarded(failed, [&] { return answer_unchecked(q); });
}

} // namespace troupe
