// One function per group of fields; messages are vLLM's where clients match on them.
#include "net/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

namespace troupe {
namespace {

constexpr size_t max_stop_strings = 16; // chat.md 5.4
constexpr size_t max_stop_ids = 1024, max_biases = 1024;
constexpr size_t max_bad_words = 1024, max_bad_word_bytes = 256; // each is tokenised twice
constexpr int64_t max_repetition_penalty = 1000000;
constexpr double least_temperature = 0.01; // below it, but not 0: clamped, as vLLM does

struct number_range {
  double low, high;
  bool low_open;
  const char* text; // "in [0, 2]"
};

double read_ranged(const field_reader& body, std::string_view key, double fallback, number_range range) {
  const auto v = body.number(key);
  if (!v) return fallback;
  if (*v < range.low || *v > range.high || (range.low_open && *v == range.low))
    body.refuse(key, fmt::format("{} must be {}, got {}.", key, range.text, body.present(key)->text));
  return *v;
}

void read_distribution(const field_reader& body, const request_facts& facts, sampling_params& out) {
  double t = read_ranged(body, "temperature", facts.default_temperature, {0, 2, false, "in [0, 2]"});
  if (t > 0 && t < least_temperature) t = least_temperature;
  out.temperature = static_cast<float>(t);
  out.top_p = static_cast<float>(read_ranged(body, "top_p", facts.default_top_p, {0, 1, true, "in (0, 1]"}));
  out.min_p = static_cast<float>(read_ranged(body, "min_p", 0, {0, 1, false, "in [0, 1]"}));
  out.frequency_penalty = static_cast<float>(read_ranged(body, "frequency_penalty", 0, {-2, 2, false, "in [-2, 2]"}));
  out.presence_penalty = static_cast<float>(read_ranged(body, "presence_penalty", 0, {-2, 2, false, "in [-2, 2]"}));
  const double repetition = body.number("repetition_penalty").value_or(1);
  if (!(repetition > 0))
    body.refuse("repetition_penalty", fmt::format("repetition_penalty must be greater than 0, got {}.",
                                                  body.present("repetition_penalty")->text));
  else if (repetition > max_repetition_penalty)
    body.refuse("repetition_penalty", fmt::format("repetition_penalty must be at most {}, got {}.",
                                                  max_repetition_penalty, body.present("repetition_penalty")->text));
  out.repetition_penalty = static_cast<float>(repetition);
  if (const auto k = body.integer("top_k")) {
    if (*k < -1) body.refuse("top_k", fmt::format("top_k must be 0 (disable), or at least 1, got {}.", *k));
    out.top_k = *k <= 0 ? 0 : static_cast<int32_t>(std::min<int64_t>(*k, facts.vocabulary));
  }
  const auto seed = body.integer("seed");
  out.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
}

void read_logit_bias(const field_reader& body, int64_t vocabulary, sampling_params& out) {
  const json_value* map = body.of_kind("logit_bias", json_kind::object);
  if (!map) return;
  if (map->items.size() > max_biases)
    return body.refuse("logit_bias",
                       fmt::format("logit_bias: at most {} tokens, got {}", max_biases, map->items.size()));
  std::string strange;
  for (size_t i = 0; i < map->items.size(); i++) {
    const auto key = map->keys[i];
    int64_t id = -1;
    const auto r = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_integer = r.ec == std::errc() && r.ptr == key.data() + key.size();
    const auto bias = to_number(map->items[i]);
    if (!bias) return body.refuse("logit_bias", fmt::format("logit_bias.{}: expected a number", quote(key, 20)));
    if (!is_integer || id < 0 || id >= vocabulary) {
      if (strange.size() < 100) strange += (strange.empty() ? "" : ", ") + quote(key, 20);
      continue;
    }
    out.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(std::clamp(*bias, -100.0, 100.0)));
  }
  if (!strange.empty())
    body.refuse("logit_bias", fmt::format("token_id(s) [{}] in logit_bias contain out-of-vocab token ids. Vocabulary "
                                          "size: {}",
                                          strange, vocabulary));
}

void read_bad_words(const field_reader& body, const request_facts& facts, sampling_params& out) {
  const json_value* list = body.of_kind("bad_words", json_kind::array);
  if (!list) return;
  if (list->items.size() > max_bad_words)
    return body.refuse("bad_words",
                       fmt::format("bad_words: at most {} words, got {}", max_bad_words, list->items.size()));
  for (const auto& v : list->items) {
    if (!v.is(json_kind::string)) return body.refuse("bad_words", "bad_words: expected an array of strings");
    if (v.text.size() > max_bad_word_bytes)
      return body.refuse("bad_words", fmt::format("bad_words: a word has at most {} bytes, found one of {}",
                                                  max_bad_word_bytes, v.text.size()));
    if (v.text.empty()) return body.refuse("bad_words", "bad_words cannot contain an empty string.");
    // At the start of a text and inside one: the ids differ by the blank in front.
    auto ids = facts.encode(v.text), inside = facts.encode(" " + std::string(v.text));
    if (inside != ids) out.bad_words.push_back(std::move(inside));
    out.bad_words.push_back(std::move(ids));
  }
}

void read_stops(const field_reader& body, const request_facts& facts, chat_request& out) {
  if (const json_value* stop = body.present("stop")) {
    const auto add = [&](const json_value& v) {
      if (!v.is(json_kind::string))
        body.refuse("stop", "stop: expected a string or an array of strings");
      else if (v.text.empty())
        body.refuse("stop", "stop cannot contain an empty string.");
      else
        out.stop.emplace_back(v.text);
    };
    if (stop->is(json_kind::array)) {
      if (stop->items.size() > max_stop_strings)
        return body.refuse("stop",
                           fmt::format("stop: at most {} strings, got {}", max_stop_strings, stop->items.size()));
      for (const auto& v : stop->items) add(v);
    } else {
      add(*stop);
    }
  }
  out.sampling.stop_ids = body.token_ids("stop_token_ids", facts.vocabulary);
  if (out.sampling.stop_ids.size() > max_stop_ids)
    body.refuse("stop_token_ids",
                fmt::format("stop_token_ids: at most {} ids, got {}", max_stop_ids, out.sampling.stop_ids.size()));
  out.include_stop_in_output = body.truth("include_stop_str_in_output", false);
  out.sampling.ignore_eos = body.truth("ignore_eos", false);
  out.skip_special_tokens = body.truth("skip_special_tokens", true);
  body.truth("spaces_between_special_tokens");
}

void read_lengths(const field_reader& body, const request_facts& facts, int64_t default_max, chat_request& out) {
  const bool newer = body.present("max_completion_tokens") != nullptr;
  const std::string_view key = newer ? "max_completion_tokens" : "max_tokens";
  const auto other = body.integer("max_tokens"); // its kind is checked even when the newer name wins
  const auto max = newer ? body.integer(key) : other;
  out.max_tokens = max.value_or(-1);
  out.default_max_tokens = default_max;
  const int64_t most = max.value_or(default_max);
  if (max && *max < 1) body.refuse(key, fmt::format("max_tokens must be at least 1, got {}.", *max));
  if (const auto least = body.integer("min_tokens")) {
    if (*least < 0)
      body.refuse("min_tokens", fmt::format("min_tokens must be greater than or equal to 0, got {}.", *least));
    else if (most > 0 && *least > most)
      body.refuse("min_tokens",
                  fmt::format("min_tokens must be less than or equal to max_tokens={}, got {}.", most, *least));
    out.sampling.min_tokens = static_cast<int32_t>(std::clamp<int64_t>(*least, 0, 1 << 30));
  }
  if (const auto n = body.integer("n")) {
    const int64_t limit = std::min(facts.config.max_n, facts.config.max_running); // all choices run at once
    if (*n < 1 || *n > limit) body.refuse("n", fmt::format("n must be at least 1 and at most {}, got {}.", limit, *n));
    out.n = static_cast<int32_t>(std::clamp<int64_t>(*n, 1, limit));
  }
  if (const auto keep = body.integer("truncate_prompt_tokens")) {
    if (*keep < -1 || *keep == 0)
      body.refuse("truncate_prompt_tokens",
                  fmt::format("truncate_prompt_tokens must be -1 or at least 1, got {}.", *keep));
    out.truncate_prompt_tokens = *keep;
  }
}

// True if the rules of sampling leave no id for the first token. Such a turn could only fail, and a stream of it would
// have opened by then. The same order of rules as in model/sampling.cpp.
bool masks_all(const sampling_params& p, const request_facts& facts) {
  const auto n_ids = static_cast<size_t>(std::max<int64_t>(facts.vocabulary, 0));
  const size_t n_rules = p.logit_bias.size() + p.bad_words.size() + p.stop_ids.size() + facts.suppressed.size() + 1;
  if (p.allowed_ids.empty() && n_rules < n_ids) return false;
  std::vector<bool> is_open(n_ids, p.allowed_ids.empty());
  const auto set = [&](int32_t id, bool open) {
    if (id >= 0 && static_cast<size_t>(id) < n_ids) is_open[static_cast<size_t>(id)] = open;
  };
  for (const auto id : p.allowed_ids) set(id, true);
  if (p.allowed_ids.empty() && facts.config.suppress_reserved)
    for (const auto id : facts.suppressed) set(id, false);
  for (const auto& [id, bias] : p.logit_bias) {
    if (bias <= -100) set(id, false);
    if (bias > 0 && p.allowed_ids.empty()) set(id, true);
  }
  for (const auto& word : p.bad_words)
    if (word.size() == 1) set(word.front(), false);
  if (p.min_tokens > 0) {
    set(facts.eos, false);
    for (const auto id : p.stop_ids) set(id, false);
  }
  return std::find(is_open.begin(), is_open.end(), true) == is_open.end();
}

} // namespace

uint64_t random_seed() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seq{device(), device(), device(), device()};
    return std::mt19937_64(seq);
  }();
  return generator();
}

void read_sampling(const field_reader& body, const request_facts& facts, int64_t default_max, chat_request& out) {
  read_distribution(body, facts, out.sampling);
  read_logit_bias(body, facts.vocabulary, out.sampling);
  if (body.present("allowed_token_ids")) {
    out.sampling.allowed_ids = body.token_ids("allowed_token_ids", facts.vocabulary);
    if (static_cast<int64_t>(out.sampling.allowed_ids.size()) > facts.vocabulary)
      body.refuse("allowed_token_ids", fmt::format("allowed_token_ids: {} ids, the vocabulary has {}",
                                                   out.sampling.allowed_ids.size(), facts.vocabulary));
    if (out.sampling.allowed_ids.empty()) body.refuse("allowed_token_ids", "allowed_token_ids cannot be empty.");
  }
  read_bad_words(body, facts, out.sampling);
  read_stops(body, facts, out);
  read_lengths(body, facts, default_max, out);
  out.sampling.suppress_reserved = facts.config.suppress_reserved;
  if (!body.problem().found() && masks_all(out.sampling, facts))
    body.refuse(out.sampling.allowed_ids.empty() ? "logit_bias" : "allowed_token_ids",
                "allowed_token_ids, logit_bias, bad_words and min_tokens together allow no token at all.");
  if (const auto p = body.integer("priority"))
    out.priority = static_cast<int32_t>(std::clamp<int64_t>(*p, 0, 1 << 30)); // negative needs an admin key
  if (const json_value* salt = body.present("cache_salt")) {
    if (!salt->is(json_kind::string) || salt->text.empty())
      body.refuse("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.");
    else
      out.cache_salt = salt->text;
  }
}

} // namespace troupe
