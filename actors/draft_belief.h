// How likely drafts are right: what the confidence head says, corrected by what came of it. Knows no CAF.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// What a sequence carries from round to round.
struct sequence_drafts {
  std::vector<int32_t> ids;      // made after its newest token, less what was found right since; empty: none
  std::vector<float> confidence; // of each, given that those before it are right
  int32_t n_used = 0;            // of the block that ids are the rest of
  bool is_on = false;            // drafts are made for it every round, because that pays
  // Right guesses and what was promised for them, both fading: their quotient corrects the confidence of a text that is
  // easier or, at a high temperature, harder than it looks.
  float right = 0, promised = 0;
  int64_t n_unjudged = 0;     // tokens since the last guess was judged
  std::vector<float> typical; // fading mean of the confidence, by place in the block; empty: nothing was drafted yet
  float trust() const;
};

// Every draft is judged by the token that is drawn at its place, whether it was verified or not: drafts that are only
// made cost no row and teach as much.
class draft_belief {
public:
  explicit draft_belief(int32_t block)
      : typical_(static_cast<size_t>(block), 0.5F), of_place_(static_cast<size_t>(block)) {}

  // That ids[j] is right when those before it are. `trust`: the sequence's, once for all of its places.
  double probability(const sequence_drafts& d, size_t j, float trust) const;
  // The same of place j in a block still to be made.
  double expected(const sequence_drafts& d, size_t j, float trust) const;
  // A new block. One confidence an id, or it is dropped.
  void take(sequence_drafts&, std::vector<int32_t> ids, std::vector<float> confidence);
  // The tokens that were drawn next. What is left of `ids` still guesses what follows them.
  void judge(sequence_drafts&, std::span<const int32_t> tokens);
  // First guesses were right less than half as often as the drafter believed, over the last thousand: it does not fit
  // the model (answers stay right, and slow), or texts are drawn at a high temperature. False until so many were judged
  // again and did well.
  bool is_weak() const { return is_weak_; }

private:
  struct tally {
    float right = 0, promised = 0;
    double correction = 1; // the quotient of both
  };
  static size_t bin(float confidence);
  double corrected(float confidence, size_t place, float trust) const;
  void watch(float said, bool is_right);

  std::vector<float> typical_;                      // of all sequences: what is believed of a new one
  std::vector<std::array<tally, 4>> of_place_;      // of all sequences, by place in the block and bin of confidence
  double watched_right_ = 0, watched_promised_ = 0; // of first guesses, since is_weak_ was last decided
  int32_t n_watched_ = 0;
  bool is_weak_ = false;
};

} // namespace troupe
