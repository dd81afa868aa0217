// libFuzzer target: any bytes as a tokenizer.json end in a tokenizer or in an error that names the file; a tokenizer
// that loads encodes and decodes without loss. Input: the JSON; what follows a line "---" is text to encode.
// Build and run, from the root:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL
//     tests/fuzz/tokenizer_fuzz.cpp model/{tokenizer,tokenizer_file,byte_pairs,pretokenizer,string_matcher}.cpp
//     model/utf8_stream.cpp storage/{check,log}.cpp -lsimdjson -lpcre2-8 -lspdlog -lfmt -o tokenizer_fuzz
//   ./tokenizer_fuzz -max_len=16384 <a folder for new inputs> tests/fuzz/corpus/tokenizer
#include "model/tokenizer.h"
#include "model/utf8_stream.h"
#include "storage/check.h"

#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace {

using namespace troupe;

void use(const tokenizer& tok, std::string_view text) {
  for (int32_t id = -1; id <= tok.size(); ++id) {
    tok.bytes(id), tok.raw(id), tok.is_special(id);
    TROUPE_CHECK(is_utf8(tok.decode({&id, 1}, false)), "decoded text is valid");
  }
  utf8_stream stream;
  std::string valid = stream.push(text);
  stream.finish(valid);
  try {
    const auto plain = tok.encode_plain(text);
    std::string bytes;
    for (const int32_t id : plain) bytes += tok.bytes(id);
    TROUPE_CHECK(bytes == valid, "encoding loses nothing");
    bytes.clear();
    for (const int32_t id : tok.encode(text)) bytes += tok.bytes(id);
    TROUPE_CHECK(bytes == valid, "added tokens lose nothing");
  } catch (const std::runtime_error&) {} // a pattern that gives up
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find("\n---\n");
  const std::string_view json = input.substr(0, cut);
  const std::string_view text = cut == input.npos ? "Hello, world 12345\n\n<think>x</think>" : input.substr(cut + 5);
  try {
    use(*tokenizer::parse(json, "fuzz.json"), text);
  } catch (const std::runtime_error& e) {
    TROUPE_CHECK(std::string_view(e.what()).starts_with("fuzz.json: "), "an error names the file");
  }
  return 0;
}
