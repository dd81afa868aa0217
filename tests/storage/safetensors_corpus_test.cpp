// Replays the corpus of the fuzz target for safetensors headers: its seeds and what fuzzing has found.
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

// The target itself, so that what is replayed here is what is fuzzed.
#include "tests/fuzz/safetensors_fuzz.cpp"

TEST_CASE("safetensors_header: every input of the fuzz corpus ends in tensors or in a refusal") {
  size_t n_inputs = 0;
  const std::filesystem::path folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fuzz/corpus/safetensors";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> input{std::istreambuf_iterator<char>(in), {}};
    CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()) == 0);
    ++n_inputs;
  }
  MESSAGE("safetensors_header: " << n_inputs << " inputs replayed");
  CHECK(n_inputs >= 15);
}
