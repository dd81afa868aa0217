// Flags of `troupe synth`.
#include "model/deepseek_v41/synth.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

namespace troupe::deepseek_v41 {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& expected, const std::string& found) {
  throw std::runtime_error("synth: " + flag + ": expected " + expected + ", found '" + found + "'");
}

template <class Number> Number number(const std::string& flag, const std::string& text, Number low, Number high) {
  Number v{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || end != text.data() + text.size() || !(v >= low && v <= high))
    refuse(flag, "a number from " + std::to_string(low) + " to " + std::to_string(high), text);
  return v;
}

// "0-9,20-29"
std::vector<int32_t> layer_list(const std::string& flag, const std::string& text) {
  constexpr int32_t most = 9999;
  std::vector<int32_t> layers;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const size_t dash = part.find('-');
    const auto first = number<int32_t>(flag, part.substr(0, dash), 0, most);
    const auto last = dash == part.npos ? first : number<int32_t>(flag, part.substr(dash + 1), first, most);
    for (int32_t l = first; l <= last; ++l) layers.push_back(l);
    at = end + 1;
  }
  return layers;
}

// A flag and what it does with its value; those without a value are in parse_synth.
struct valued_flag {
  std::string_view name;
  void (*take)(synth_options&, const std::string& flag, const std::string& value);
};

constexpr int64_t most_rows = 2000000000; // what a config's list of row counts holds
const valued_flag valued[] = {
    {"--seed", [](auto& o, auto& f, auto& v) { o.settings.seed = number<uint64_t>(f, v, 0, INT64_MAX); }},
    {"--layers", [](auto& o, auto& f, auto& v) { o.settings.layers = layer_list(f, v); }},
    {"--bits", [](auto& o, auto&, auto& v) { o.settings.bits = v; }},
    {"--engram-rows", [](auto& o, auto& f, auto& v) { o.engram_rows = number<int64_t>(f, v, 1, most_rows); }},
    {"--expert-skew", [](auto& o, auto& f, auto& v) { o.settings.expert_skew = number<double>(f, v, 0, 10); }},
    {"--outliers", [](auto& o, auto& f, auto& v) { o.settings.outliers = number<int64_t>(f, v, 0, 100000); }},
    {"--experts", [](auto& o, auto& f, auto& v) { o.experts = number<int64_t>(f, v, 1, 100000); }},
    {"--vocab", [](auto& o, auto& f, auto& v) { o.vocabulary = number<int64_t>(f, v, 1, 1 << 24); }},
    {"--like", [](auto& o, auto&, auto& v) { o.like = v; }},
    {"--tokenizer", [](auto& o, auto&, auto& v) { o.tokenizer = v; }},
};

} // namespace

synth_options parse_synth(std::span<const std::string> arguments, const std::string& tokenizer) {
  synth_options o;
  o.tokenizer = tokenizer;
  std::optional<bool> is_virtual;
  const auto place = [&](const std::string& flag, bool wants_virtual) {
    if (is_virtual && *is_virtual != wants_virtual) refuse(flag, "one of --virtual and --disk", "both");
    is_virtual = wants_virtual;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].starts_with("--") ? arguments[i].find('=') : std::string::npos;
    const std::string flag = arguments[i].substr(0, equals);
    const auto* found =
        std::find_if(std::begin(valued), std::end(valued), [&](const valued_flag& v) { return v.name == flag; });
    if (found != std::end(valued)) {
      if (equals == std::string::npos && i + 1 == arguments.size()) refuse(flag, "a value", "nothing");
      found->take(o, flag, equals != std::string::npos ? arguments[i].substr(equals + 1) : arguments[++i]);
    } else if (flag == "--virtual" || flag == "--disk") {
      place(flag, flag == "--virtual");
    } else if (flag == "--draft") {
      o.with_draft = true;
    } else if (flag == "--vision") {
      o.with_vision = true;
    } else if (flag.starts_with("--") || !o.folder.empty()) {
      throw std::runtime_error("synth: '" + arguments[i] + "' is no argument of it; the flags are\n" + synth_help());
    } else {
      o.folder = arguments[i];
    }
  }
  if (o.folder.empty()) throw std::runtime_error("synth: expected the folder to make; the flags are\n" + synth_help());
  o.is_virtual = is_virtual.value_or(true);
  return o;
}

std::string synth_help() {
  return "  --virtual           no weights in the folder, they are made when they are read (the default)\n"
         "  --disk              weights in files\n"
         "  --seed N            1\n"
         "  --layers LIST       of the released model, e.g. 0-9,20-29: each keeps its role; all\n"
         "  --bits 2.9          the rates of the tensors: EXL3 mul1 as in the public 2.9 bpw pack\n"
         "  --engram-rows N     about as many rows a table, in place of the real number\n"
         "  --expert-skew X     0: experts are chosen alike; 1: the r-th most frequent one 1/r as often\n"
         "  --outliers N        residual channels that are 16 times as large; 8\n"
         "  --draft, --vision   with the draft stages, with the vision tower\n"
         "  --like FOLDER       sizes from another model's config\n"
         "  --experts N, --vocab N   in place of the config's\n"
         "  --tokenizer FILE    a tokenizer.json; the shipped model's, with \"<id>\" for the ids it lacks\n";
}

} // namespace troupe::deepseek_v41
