// The file that makes a folder synthetic, and the tensors behind it. Beside config.json a folder of generated weights
// holds synth.json instead of weights: settings of the recipe, from which every byte follows when it is read.
#pragma once

#include "model/deepseek_v41/synth_recipe.h"
#include "storage/safetensors.h"
#include "storage/tensor_source.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

struct synth_file {
  synth_settings settings;
  bool is_virtual = false; // false: the folder has files of weights, and this only tells where they came from
};

// nullopt: the folder has no synth.json. Throws std::runtime_error naming file, key, expected and found.
std::optional<synth_file> read_synth_file(const std::filesystem::path& folder);
std::string synth_file_text(const synth_file&);

// Bytes of the tensors of a recipe. Their tensor_info is known by its `offset`: the number in the recipe.
class synth_source final : public tensor_source {
public:
  synth_source(std::string name, std::vector<synth_tensor> made) : name_(std::move(name)), made_(std::move(made)) {}
  std::string name() const override { return name_; }
  void read(const tensor_info&, uint64_t byte_offset, std::span<std::byte> out) const override;

  std::vector<tensor_info> tensors() const;
  const std::string& owner(const tensor_info& t) const { return made_[t.offset].owner; }

private:
  std::string name_;
  std::vector<synth_tensor> made_;
};

// The tensors of a folder: from its files, or made where its synth.json says so. Throws checkpoint_error and
// std::runtime_error.
checkpoint_files open_checkpoint(const std::filesystem::path& folder, const config&);

} // namespace troupe::deepseek_v41
