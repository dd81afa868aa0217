// Replays the corpus of the output_parser fuzz target without libFuzzer: every input ends as the target says it must.
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#define LLVMFuzzerTestOneInput output_parser_fuzz_one_input // each target of a test program needs a name of its own
#include "tests/fuzz/output_parser_fuzz.cpp"
#undef LLVMFuzzerTestOneInput

TEST_CASE("output_parser: every input of the fuzz corpus is handled") {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/fuzz/corpus/output_parser")) {
    CAPTURE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string input(std::istreambuf_iterator<char>(in), {});
    CHECK(output_parser_fuzz_one_input(reinterpret_cast<const uint8_t*>(input.data()), input.size()) == 0);
    ++n;
  }
  CHECK(n > 5);
}
