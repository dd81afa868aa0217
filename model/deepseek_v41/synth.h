// The verb `synth`: a checkpoint folder of the released model's shapes, made from a seed.
#pragma once

#include "model/deepseek_v41/synth_folder.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

struct synth_options {
  std::filesystem::path folder;
  synth_settings settings; // layers empty: all
  bool is_virtual = true;  // no weights in the folder: they are made when they are read
  bool with_draft = false, with_vision = false;
  std::string like;      // folder whose config gives the sizes; empty: the released model
  std::string tokenizer; // tokenizer.json
  std::optional<int64_t> engram_rows, experts, vocabulary; // in place of the config's
};

// `arguments` behind the verb. `tokenizer`: where none is given. Throws std::runtime_error naming the argument,
// expected and found.
synth_options parse_synth(std::span<const std::string> arguments, const std::string& tokenizer);
// The flags, one a line.
std::string synth_help();

struct synth_report {
  int64_t n_tensors = 0;
  uint64_t weight_bytes = 0, on_disk_bytes = 0;
  std::string text; // lines for an operator
};

// Makes the folder. `wrote` is told of bytes on their way to the disk, of how many. Throws std::runtime_error: a folder
// that holds something, sizes that do not fit together, a disk that is too small (before anything is written);
// std::system_error when writing fails.
synth_report make_synth(const synth_options&, const std::function<void(uint64_t done, uint64_t all)>& wrote);

} // namespace troupe::deepseek_v41
