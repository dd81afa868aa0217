// Feeds the output parser text in any grouping: a vocabulary is made in which each group is one token.
#pragma once

#include "model/deepseek_v41/chat_constants.h"
#include "model/deepseek_v41/json_text.h"
#include "model/deepseek_v41/output_parser.h"
#include "tests/model/golden_chat.h"

#include <map>
#include <random>

namespace troupe::golden_chat {

// A piece of model output: an added token by its content, or the text of one ordinary token.
struct unit {
  std::string text;
  bool is_marker = false;
};
using units = std::vector<unit>;

// Bytes, added tokens of the chat format, and every text that is asked for.
class chunk_vocabulary {
public:
  explicit chunk_vocabulary(const std::vector<units>& all) {
    std::string vocab, added;
    int32_t next = 0;
    const auto add = [&](std::string& to, const std::string& entry) { to += (to.empty() ? "" : ",") + entry; };
    const auto quoted = [](const std::string& s) {
      std::string out = "\"";
      append_json_escaped(out, s);
      return out + "\"";
    };
    for (int b = 0; b < 256; ++b) {
      add(vocab, quoted(spelling_of_byte(static_cast<uint8_t>(b))) + ":" + std::to_string(next));
      text_ids_[std::string(1, static_cast<char>(b))] = next++;
    }
    for (const units& list : all)
      for (const unit& u : list) {
        if (u.is_marker || !text_ids_.try_emplace(u.text, next).second) continue;
        std::string spelling;
        for (const char c : u.text) spelling += spelling_of_byte(static_cast<uint8_t>(c));
        add(vocab, quoted(spelling) + ":" + std::to_string(next++));
      }
    using namespace chat_text;
    std::vector<std::string_view> contents{bos,         eos,       pad,  system, user, assistant, latest_reminder,
                                           think_start, think_end, dsml, image};
    for (const auto& task : tasks) contents.push_back(task.second);
    for (const std::string_view content : contents) {
      const bool is_special = content == bos || content == eos || content == pad;
      add(added, "{\"id\":" + std::to_string(next) + ",\"content\":" + quoted(std::string(content)) +
                     ",\"special\":" + (is_special ? "true" : "false") + "}");
      marker_ids_[std::string(content)] = next++;
    }
    tok = tokenizer::parse("{\"added_tokens\":[" + added +
                               "],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
                               "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
                               "\"model\":{\"type\":\"BPE\",\"vocab\":{" +
                               vocab + "},\"merges\":[]}}",
                           "chunks");
    markers = find_markers(*tok);
  }
  int32_t id(const unit& u) const { return u.is_marker ? marker_ids_.at(u.text) : text_ids_.at(u.text); }

  std::shared_ptr<const tokenizer> tok;
  troupe::marker_ids markers;

private:
  std::map<std::string, int32_t> text_ids_, marker_ids_;
};

// One unit a byte or a character, markers whole.
inline units split(const units& list, bool keeps_characters) {
  units out;
  for (const unit& u : list) {
    if (u.is_marker) {
      out.push_back(u);
      continue;
    }
    for (const char c : u.text) {
      const bool continues = keeps_characters && (static_cast<uint8_t>(c) & 0xC0) == 0x80;
      if (continues && !out.empty() && !out.back().is_marker)
        out.back().text += c;
      else
        out.push_back({std::string(1, c), false});
    }
  }
  return out;
}
inline units characters(const units& list) { return split(list, true); }

// Joins neighbouring text units wherever `cut` does not say that a new group begins at that index.
template <class Cut> units grouped(const units& list, Cut&& cut) {
  units out;
  for (size_t i = 0; i < list.size(); ++i)
    if (!out.empty() && !out.back().is_marker && !list[i].is_marker && !cut(i))
      out.back().text += list[i].text;
    else
      out.push_back(list[i]);
  return out;
}

inline unit marker(std::string_view content) { return {std::string(content), true}; }

// Builds output text of calls the way the model writes it.
struct writer {
  units out;
  void text(const std::string& s) {
    if (s.empty()) return;
    if (out.empty() || out.back().is_marker)
      out.push_back({s, false});
    else
      out.back().text += s;
  }
  void tag(const std::string& before, const std::string& after) {
    text(before), out.push_back(marker(chat_text::dsml)), text(after);
  }
  void open_block() { tag("\n\n<", " calls>\n"); }
  void close_block() { tag("</", " calls>"); }
  void open_call(const std::string& name) { tag("<", " invoke name=\"" + name + "\">\n"); }
  void close_call() { tag("</", " invoke>\n"); }
  void parameter(const std::string& key, bool is_string, const std::string& value) {
    tag("<", " parameter name=\"" + key + "\" string=\"" + (is_string ? "true" : "false") + "\">");
    text(value), tag("</", " parameter>\n");
  }
};

inline parser_options with_tools() {
  parser_options o;
  o.tools_active = true;
  o.tools.push_back({"f", "", {{"a", parameter_type::string}, {"n", parameter_type::integer}}});
  o.tools.push_back({"ping", "", {}});
  return o;
}

struct parsed {
  std::string reasoning, content;
  struct call {
    std::string name, arguments;
    bool operator==(const call&) const = default;
  };
  std::vector<call> calls;
  std::optional<std::string> stop;
  uint64_t n_errors = 0; // not part of what must be equal

  bool operator==(const parsed& o) const {
    return reasoning == o.reasoning && content == o.content && calls == o.calls && stop == o.stop;
  }
  void add(const output_event& e) {
    switch (e.what) {
    case output_event::kind::reasoning: reasoning += e.text; break;
    case output_event::kind::content: content += e.text; break;
    case output_event::kind::call: calls.push_back({e.text, ""}); break;
    case output_event::kind::arguments: calls.at(static_cast<size_t>(e.call_index)).arguments += e.text; break;
    }
  }
};

// Every event as it came; checks what must hold of any stream.
inline parsed run(const chunk_vocabulary& v, const units& list, const parser_options& options,
                  output_parser::ending ending, std::vector<output_event>* events = nullptr) {
  output_parser parser(v.tok, v.markers, options);
  std::vector<output_event> all, out;
  const auto take = [&] {
    for (const output_event& e : out) all.push_back(e);
    out.clear();
  };
  for (const unit& u : list) {
    if (parser.done()) break;
    parser.push(v.id(u), out);
    take();
  }
  parser.finish(ending, out);
  take();
  parsed p;
  bool has_call = false, ok = true;
  for (const output_event& e : all) {
    has_call |= e.what == output_event::kind::call;
    ok &= !(has_call && e.what != output_event::kind::call && e.what != output_event::kind::arguments);
    ok &= !e.text.empty() && is_utf8(e.text);
    ok &= e.what != output_event::kind::call || e.call_index == static_cast<int32_t>(p.calls.size());
    ok &= e.what != output_event::kind::arguments || e.call_index + 1 == static_cast<int32_t>(p.calls.size());
    p.add(e);
  }
  CHECK_MESSAGE(ok, "events out of order, empty or cut inside a character");
  CHECK(parser.n_calls() == static_cast<int32_t>(p.calls.size()));
  p.stop = parser.stop_match();
  p.n_errors = parser.n_parse_errors();
  if (events != nullptr) *events = std::move(all);
  return p;
}

} // namespace troupe::golden_chat
