// The tensors of a checkpoint against what the config needs: each matrix in the form that exists, all problems at once.
// Spec: model-tensors.md, exl3.md sections 3, 7 and 15.
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/names.h"
#include "storage/safetensors.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

// A linear as its file stores it; the infos belong to the checkpoint.
struct found_matrix {
  stored_matrix::format how = stored_matrix::format::dense;
  stored_matrix::codebook book = stored_matrix::codebook::inst3;
  std::string name; // stem, for messages
  int64_t out = 0, in = 0;
  const tensor_info *weight = nullptr, *scale = nullptr, *bias = nullptr;
  const tensor_info *trellis = nullptr, *suh = nullptr, *svh = nullptr; // suh, svh: I16 in the legacy form su, sv
  int64_t cut_unit() const; // widths can be cut at multiples of this on both sides: 1, 32 or 128
};

// An Engram table: its files' tensors and how a row is read (exl3.md section 14).
struct found_table {
  const tensor_info *weight = nullptr, *scale = nullptr; // no scale: plain BF16 rows
  engram_format format = engram_format::fp8;
  int64_t rows = 0, width = 0;
  int64_t record_bytes = 0; // codes then scales
};

struct checkpoint_report {
  std::string folder;
  int64_t n_tensors = 0, n_packed = 0, n_native = 0; // tensors; EXL3 matrices; matrices in another form
  uint64_t size_bytes = 0;
  std::map<std::string, int64_t> families;        // tensors of each family
  std::map<std::string, int64_t> encodings;       // matrices of each form: "EXL3 mul1 K=4", "FP8 32x32"
  std::map<std::string, int64_t> draft_encodings; // of those, the drafter's: its precision bounds what is accepted
  std::vector<std::string> problems;              // empty: the checkpoint is complete
  std::vector<std::string> unknown;               // tensors that nothing here uses
  std::string text() const;                       // many lines, for an operator
};

// Owns the files and the config. Construction reads headers only; throws checkpoint_error, std::runtime_error.
class checkpoint {
public:
  explicit checkpoint(const std::filesystem::path& folder);

  const config& settings() const { return config_; }
  const checkpoint_files& files() const { return files_; }
  const tensor_info* find(const std::string& name) const; // also under "model."

  // Checks every need; the draft's and the tower's only where asked for.
  checkpoint_report inspect(bool with_draft, bool with_vision) const;
  // inspect, but throws checkpoint_error with all problems, if there are any.
  void require(bool with_draft, bool with_vision) const;

  // Precondition of these: require() passed for this tensor.
  found_matrix matrix_at(const std::string& stem, int64_t out, int64_t in, bias_rule = bias_rule::optional) const;
  bool has_slices(const std::string& stem) const; // stem.slice.0 exists
  bool has_matrix(const std::string& stem) const;
  found_table table_at(int32_t slot) const;

private:
  std::filesystem::path folder_;
  config config_;
  checkpoint_files files_;
};

// Headers, markers and shapes of a folder. Never throws for what the report can say; a folder without files throws.
checkpoint_report verify_checkpoint(const std::filesystem::path& folder);

} // namespace troupe::deepseek_v41
