// libFuzzer target: no sequence of tokens makes the output parser crash or send a broken stream, and the message does
// not depend on how the text was grouped. Input: 4 bytes of options, then the output; byte 0xFE stands for the DSML
// marker, 0xFD and 0xFC for the think pair, 0xFB for a special token. Build and run, from the root:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL
//     tests/fuzz/output_parser_fuzz.cpp
//     model/deepseek_v41/{output_parser,call_block,call_builder,json_text,markers}.cpp
//     model/{tokenizer,tokenizer_file,byte_pairs,pretokenizer,string_matcher,utf8_stream,stop_strings}.cpp
//     storage/{check,log}.cpp -lsimdjson -lpcre2-8 -lspdlog -lfmt -o output_parser_fuzz
//   ./output_parser_fuzz -max_len=1024 <a folder for new inputs> tests/fuzz/corpus/output_parser
#include "model/deepseek_v41/chat_constants.h"
#include "model/deepseek_v41/json_text.h"
#include "model/deepseek_v41/output_parser.h"
#include "storage/check.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace {

using namespace troupe;

// A vocabulary of the bytes, a few joined tokens that real output has, and the markers.
std::shared_ptr<const tokenizer> make_tokenizer() {
  std::string vocab, added;
  int32_t n = 0;
  const auto add = [&](std::string& to, std::string_view text, bool is_added) {
    std::string quoted = "\"";
    append_json_escaped(quoted, text);
    const std::string id = std::to_string(n++);
    to += to.empty() ? "" : ",";
    to += is_added ? "{\"id\":" + id + ",\"content\":" + quoted + "\",\"special\":" + (n <= 266 ? "true}" : "false}")
                   : quoted + "\":" + id;
  };
  for (int b = 0; b < 256; ++b) add(vocab, spelling_of_byte(static_cast<uint8_t>(b)), false);
  for (const char* joined : {"</", "><", ">\u010A", "\u010A\u010A", "\u0120calls", "\u0120invoke", "\u0120parameter"})
    add(vocab, joined, false);
  using namespace chat_text;
  for (const std::string_view special : {bos, eos, pad}) add(added, special, true);
  for (const std::string_view marker :
       {chat_text::system, user, assistant, latest_reminder, think_start, think_end, dsml, image})
    add(added, marker, true);
  for (const auto& task : tasks) add(added, task.second, true);
  return tokenizer::parse("{\"added_tokens\":[" + added +
                              "],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
                              "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
                              "\"model\":{\"type\":\"BPE\",\"vocab\":{" +
                              vocab + "},\"merges\":[]}}",
                          "fuzz vocabulary");
}

struct message {
  std::string reasoning, content, calls;
  bool operator==(const message&) const = default;
};

message parse(const std::shared_ptr<const tokenizer>& tok, const marker_ids& markers, const parser_options& options,
              const std::vector<int32_t>& ids, output_parser::ending ending) {
  output_parser parser(tok, markers, options);
  std::vector<output_event> events;
  for (const int32_t id : ids) parser.push(id, events);
  parser.finish(ending, events);
  TROUPE_CHECK(parser.done(), "a finished parser is done");
  message m;
  std::vector<std::string> arguments;
  for (const output_event& e : events) {
    TROUPE_CHECK(!e.text.empty() && is_utf8(e.text), "events hold whole characters");
    const bool is_call = e.what == output_event::kind::call || e.what == output_event::kind::arguments;
    TROUPE_CHECK(is_call || arguments.empty(), "text never follows a call");
    if (e.what == output_event::kind::reasoning) m.reasoning += e.text;
    if (e.what == output_event::kind::content) m.content += e.text;
    if (e.what == output_event::kind::call) arguments.emplace_back(), m.calls += e.text + '\n';
    if (is_call) TROUPE_CHECK(e.call_index + 1 == static_cast<int32_t>(arguments.size()), "calls come one by one");
    if (e.what == output_event::kind::arguments) arguments.back() += e.text;
  }
  TROUPE_CHECK(parser.n_calls() == static_cast<int32_t>(arguments.size()), "every call has its event");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_cut = ending == output_parser::ending::length && i + 1 == arguments.size();
    TROUPE_CHECK(is_cut || kind_of_json(arguments[i]) == json_kind::object, "complete arguments are an object");
    m.calls += arguments[i] + '\n';
  }
  return m;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tok = make_tokenizer();
  static const marker_ids markers = find_markers(*tok);
  if (size < 4) return 0;
  parser_options o;
  o.start = static_cast<parser_start>(data[0] % 3);
  o.tools_active = data[1] & 1, o.skip_special_tokens = data[1] & 2, o.parallel_tool_calls = data[1] & 4;
  o.include_stop = data[1] & 8, o.raw = data[1] & 16;
  if (data[2] & 1) o.stop.push_back("END");
  if (data[2] & 2) o.stop.push_back("\n\n<");
  if (data[2] & 4) o.stop.push_back("D");
  o.tools = {{"f", "", {{"a", parameter_type::string}, {"n", parameter_type::integer}, {"o", parameter_type::object}}}};
  const auto ending = data[3] & 1 ? output_parser::ending::stop : output_parser::ending::length;
  std::vector<int32_t> single, joined; // one id a byte (byte b is id b); joined tokens where the vocabulary has them
  std::string run;
  const auto flush = [&] {
    for (size_t i = 0; i < run.size(); ++i) {
      bool found = false;
      for (int32_t id = 256; id < 263 && !found; ++id)
        if (std::string_view(run).substr(i).starts_with(tok->bytes(id))) {
          joined.push_back(id);
          i += tok->bytes(id).size() - 1;
          found = true;
        }
      if (!found) joined.push_back(static_cast<uint8_t>(run[i]));
    }
    run.clear();
  };
  for (size_t i = 4; i < size; ++i) {
    const uint8_t b = data[i];
    const int32_t marker = b == 0xFE   ? markers.dsml
                           : b == 0xFD ? markers.think_start
                           : b == 0xFC ? markers.think_end
                           : b == 0xFB ? markers.pad
                                       : -1;
    if (marker >= 0) flush(), joined.push_back(marker), single.push_back(marker);
    if (marker < 0) run += static_cast<char>(b), single.push_back(b);
  }
  flush();
  TROUPE_CHECK(parse(tok, markers, o, single, ending) == parse(tok, markers, o, joined, ending),
               "the message does not depend on the grouping");
  return 0;
}
