// Cuts text into the pieces that byte-pair merging never crosses: regex splits in sequence. Spec: chat.md 1.3.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Each split works on the pieces the one before it left, behaviour "Isolated": matches become pieces and so does every
// gap between matches. Immutable once made; pieces are cut by a `cutter`, one per caller.
class pretokenizer {
public:
  // `patterns` as tokenizer.json spells them. Throws std::runtime_error for a pattern that does not compile or uses a
  // construct whose meaning differs between regex engines.
  explicit pretokenizer(std::span<const std::string> patterns);
  ~pretokenizer();
  pretokenizer(pretokenizer&&) noexcept;

  class cutter {
  public:
    explicit cutter(const pretokenizer&);
    ~cutter();
    cutter(cutter&&) noexcept;
    // Appends the pieces of `text` in order; their concatenation is `text`. Precondition: `text` is valid UTF-8.
    // Throws std::runtime_error when a pattern gives up on this text (match limit).
    void cut(std::string_view text, std::vector<std::string_view>& pieces);

  private:
    struct scratch;
    void cut(std::string_view text, size_t level, std::vector<std::string_view>& pieces);
    const pretokenizer* rules_;
    std::unique_ptr<scratch> scratch_;
  };

private:
  struct split;
  std::vector<split> splits_;
};

} // namespace troupe
