// One need against the tensors that exist: which form it has, or what is wrong with it.
#pragma once

#include "model/deepseek_v41/checkpoint.h"

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace troupe::deepseek_v41 {

// Finds needs by name and keeps what it learns. Nothing here throws for the contents of a checkpoint.
class resolver {
public:
  resolver(const checkpoint& from, std::unordered_set<const tensor_info*>& used) : from_(from), used_(used) {}

  // Problems of the last call; empty when it succeeded. `missing`: the one problem is that nothing is there.
  const std::vector<std::string>& problems() const { return problems_; }
  bool missing() const { return missing_; }

  found_matrix matrix(const std::string& stem, int64_t out, int64_t in, bias_rule bias);
  found_table table(const std::string& stem, int64_t rows, int64_t width);
  void plain(const std::string& name, const std::vector<int64_t>& shape);
  static std::string encoding(const found_matrix&); // "EXL3 mul1 K=4", "FP8 32x32"

private:
  void begin();
  void fail(const std::string& name, const std::string& expected, const std::string& found);
  const tensor_info* use(const std::string& name);
  bool fits(const tensor_info*, const std::string& expected, bool holds);
  void packed(found_matrix&, const std::string& stem);
  void native(found_matrix&, const std::string& stem);
  void marker(found_matrix&, const std::string& stem);

  const checkpoint& from_;
  std::unordered_set<const tensor_info*>& used_;
  std::vector<std::string> problems_;
  bool missing_ = false;
};

std::string describe(const tensor_info&); // "BF16 [128, 64]"

} // namespace troupe::deepseek_v41
