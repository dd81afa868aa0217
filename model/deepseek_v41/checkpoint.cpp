// Needs against tensors, for the loader and for `verify`.
#include "model/deepseek_v41/checkpoint.h"

#include "model/deepseek_v41/resolve.h"
#include "model/deepseek_v41/synth_folder.h"

#include <algorithm>
#include <unordered_set>

namespace troupe::deepseek_v41 {
namespace {

constexpr size_t listed = 8; // names of a list that a message spells out

// "attention of layer 3: wq_a, wkv", one line for each family and owner.
class missing_list {
public:
  void add(const tensor_need& n) {
    const std::string group = n.family + " of " + n.owner;
    if (groups_.empty() || groups_.back().first != group) groups_.emplace_back(group, std::vector<std::string>{});
    groups_.back().second.push_back(n.label);
  }
  void write(std::vector<std::string>& to) const {
    for (const auto& [group, names] : groups_) {
      std::string line = "missing: " + group + ": ";
      for (size_t i = 0; i < std::min(names.size(), listed); ++i) line += (i > 0 ? ", " : "") + names[i];
      if (names.size() > listed) line += " and " + std::to_string(names.size() - listed) + " more";
      to.push_back(std::move(line));
    }
  }

private:
  std::vector<std::pair<std::string, std::vector<std::string>>> groups_;
};

// Runs one need through the resolver and counts what it found.
class inspection {
public:
  inspection(const checkpoint& from, checkpoint_report& report) : from_(from), report_(report), find_(from, used_) {}

  void check(const std::vector<tensor_need>& needs, bool required) {
    missing_list missing;
    for (const tensor_need& n : needs) {
      const size_t before = used_.size();
      const bool is_missing = one(n);
      report_.families[n.family] += static_cast<int64_t>(used_.size() - before);
      if (is_missing && required && !n.optional) missing.add(n);
    }
    missing.write(report_.problems);
  }
  const std::unordered_set<const tensor_info*>& used() const { return used_; }

private:
  bool one(const tensor_need& n) {
    switch (n.what) {
    case tensor_need::kind::plain: find_.plain(n.stem, n.shape); break;
    case tensor_need::kind::table: find_.table(n.stem, n.out, n.in); break;
    case tensor_need::kind::matrix: matrix(n, n.stem, n.out); break;
    case tensor_need::kind::grouped:
      if (!from_.has_slices(n.stem)) {
        matrix(n, n.stem, n.out);
        break;
      }
      for (int64_t g = 0; g < n.groups; ++g) {
        matrix(n, n.stem + ".slice." + std::to_string(g), n.out / n.groups);
        if (find_.missing() || !find_.problems().empty()) break;
      }
      break;
    }
    if (find_.missing()) return true;
    for (const std::string& p : find_.problems()) report_.problems.push_back(p);
    return false;
  }
  void matrix(const tensor_need& n, std::string stem, int64_t out) {
    if (n.stem == "head" && !from_.has_matrix("head") && from_.has_matrix("lm_head")) stem = "lm_head";
    const found_matrix m = find_.matrix(stem, out, n.in, n.bias);
    if (!find_.problems().empty()) return;
    ++(m.how == stored_matrix::format::exl3 ? report_.n_packed : report_.n_native);
    ++report_.encodings[resolver::encoding(m)];
  }

  const checkpoint& from_;
  checkpoint_report& report_;
  std::unordered_set<const tensor_info*> used_;
  resolver find_;
};

} // namespace

int64_t found_matrix::cut_unit() const {
  switch (how) {
  case stored_matrix::format::dense: return 1;
  case stored_matrix::format::exl3: return 128;
  default: return 32;
  }
}

checkpoint::checkpoint(const std::filesystem::path& folder)
    : folder_(folder), config_(read_config(folder)), files_(open_checkpoint(folder, config_)) {}

const tensor_info* checkpoint::find(const std::string& name) const {
  const tensor_info* t = files_.find(name);
  return t != nullptr ? t : files_.find("model." + name);
}

bool checkpoint::has_slices(const std::string& stem) const { return has_matrix(stem + ".slice.0"); }
bool checkpoint::has_matrix(const std::string& stem) const {
  return find(stem + ".trellis") != nullptr || find(stem + ".weight") != nullptr;
}

checkpoint_report checkpoint::inspect(bool with_draft, bool with_vision) const {
  checkpoint_report report;
  report.folder = folder_.string();
  inspection all(*this, report);
  all.check(backbone_needs(config_), true);
  const auto of_backbone = report.encodings;
  all.check(draft_needs(config_), with_draft);
  for (const auto& [name, n] : report.encodings) {
    const auto before = of_backbone.find(name);
    if (const int64_t more = n - (before == of_backbone.end() ? 0 : before->second); more > 0)
      report.draft_encodings[name] = more;
  }
  all.check(vision_needs(config_), with_vision);
  for (const tensor_info& t : files_.tensors()) {
    ++report.n_tensors;
    report.size_bytes += t.size_bytes;
    if (!all.used().contains(&t)) report.unknown.push_back(t.name);
  }
  return report;
}

void checkpoint::require(bool with_draft, bool with_vision) const {
  const checkpoint_report report = inspect(with_draft, with_vision);
  if (report.problems.empty()) return;
  std::string message = folder_.string() + ": the checkpoint cannot be loaded";
  for (const std::string& p : report.problems) message += "\n  " + p;
  throw checkpoint_error(message);
}

found_matrix checkpoint::matrix_at(const std::string& stem, int64_t out, int64_t in, bias_rule bias) const {
  std::unordered_set<const tensor_info*> used;
  resolver find(*this, used);
  const bool renamed = stem == "head" && !has_matrix("head") && has_matrix("lm_head");
  found_matrix m = find.matrix(renamed ? "lm_head" : stem, out, in, bias);
  if (!find.problems().empty()) throw checkpoint_error(find.problems().front());
  return m;
}

found_table checkpoint::table_at(int32_t slot) const {
  std::unordered_set<const tensor_info*> used;
  resolver find(*this, used);
  const auto s = static_cast<size_t>(slot);
  const found_table t = find.table(layer_prefix(config_.engram.layers[s]) + "engram.embed", config_.engram.rows[s],
                                   config_.engram.head_dim);
  if (!find.problems().empty()) throw checkpoint_error(find.problems().front());
  return t;
}

checkpoint_report verify_checkpoint(const std::filesystem::path& folder) {
  return checkpoint(folder).inspect(true, true);
}

std::string checkpoint_report::text() const {
  std::string s = folder + ": " + std::to_string(n_tensors) + " tensors, " + std::to_string(size_bytes) + " bytes, " +
                  std::to_string(n_packed) + " packed and " + std::to_string(n_native) + " native matrices\n";
  for (const auto& [name, n] : encodings) s += "  " + std::to_string(n) + " matrices " + name + "\n";
  for (const auto& [name, n] : draft_encodings)
    s += "  of them " + std::to_string(n) + " of the drafter " + name + "\n";
  for (const auto& [name, n] : families) s += "  " + std::to_string(n) + " tensors of " + name + "\n";
  for (size_t i = 0; i < std::min(unknown.size(), listed); ++i) s += "  unknown: " + printable(unknown[i]) + "\n";
  if (unknown.size() > listed) s += "  unknown: " + std::to_string(unknown.size() - listed) + " more\n";
  for (const std::string& p : problems) s += "  " + p + "\n";
  return s + (problems.empty() ? "  complete\n" : "  " + std::to_string(problems.size()) + " problems\n");
}

} // namespace troupe::deepseek_v41
