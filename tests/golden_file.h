// A golden safetensors file that remembers which of its tensors a comparison used, so that a test can name the others.
#pragma once

#include "gpu/formats.h"
#include "gpu/tensor.h"
#include "storage/safetensors.h"

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::test {

// Folder `name` of golden data: in the tree (a subset), and beside the tree (all of it) where that exists.
inline std::filesystem::path golden_in_tree(const std::string& name) {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/golden" / name;
}
inline std::filesystem::path golden_beside_tree(const std::string& name) {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "../shared/golden" / name;
}
// The file from either place, or nullopt: absent.
inline std::optional<std::filesystem::path> find_golden(const std::string& folder, const std::string& file) {
  for (const auto& place : {golden_in_tree(folder), golden_beside_tree(folder)})
    if (std::filesystem::exists(place / file)) return place / file;
  return std::nullopt;
}

class golden_file {
public:
  explicit golden_file(const std::filesystem::path& path) : files_(path) {}

  bool has(const std::string& name) const { return files_.find(name) != nullptr; }

  // The tensor as stored, marked as used. The view lives as long as this object. Throws when it is not there.
  tensor get(const std::string& name) {
    const tensor_info* info = files_.find(name);
    if (info == nullptr) throw std::runtime_error("golden file lacks the tensor " + name);
    used_.insert(name);
    auto [at, is_new] = bytes_.try_emplace(name);
    if (is_new) at->second = files_.read(*info);
    tensor t;
    t.data = at->second.data();
    t.type = info->type;
    t.rank = static_cast<int32_t>(info->shape.size());
    TROUPE_CHECK(t.rank <= 4, "golden tensors have at most four dimensions");
    for (int i = 0; i < t.rank; ++i) t.shape[i] = info->shape[static_cast<size_t>(i)];
    return t;
  }

  // Its values as f32 (float types only), marked as used.
  std::vector<float> floats(const std::string& name) {
    const tensor t = get(name);
    std::vector<float> v(static_cast<size_t>(t.n_elements()));
    to_f32(v.data(), t, name.c_str());
    return v;
  }

  // Named, but only for information: what a README calls peer accuracy.
  void information_only(const std::string& name) { used_.insert(name); }

  // Tensors that nothing asked for, in order.
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& t : files_.tensors())
      if (!used_.contains(t.name)) names.push_back(t.name);
    return names;
  }

private:
  checkpoint_files files_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::set<std::string> used_;
};

} // namespace troupe::test
