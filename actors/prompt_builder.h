// A request's text and images as token ids that fit the context. The work of prepare; knows no CAF.
#pragma once

#include "actors/prepare.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// Const and safe to use from several threads.
class prompt_builder {
public:
  prompt_builder(prepare_config, std::shared_ptr<const text_side>);

  // Errors are values: turn_prepared::failure, text_answer::failure.
  turn_prepared prepare(chat_request) const;
  text_answer answer(const text_question&) const;

private:
  struct encoded {
    std::vector<int32_t> ids;
    bool is_cut = false; // the text is longer than the context, by how much is not known
  };
  turn_prepared build(chat_request) const;
  void build_chat(turn_prepared&) const;
  void build_completions(turn_prepared&) const;
  text_answer answer_unchecked(const text_question&) const;
  void tokenise_chat(const text_question&, text_answer&) const;

  rendered_prompt render(chat_input) const;
  encoded encode(const rendered_prompt&, const chat_request&) const;
  std::vector<planned_image> plan_images(const std::vector<std::string>& files,
                                         const std::vector<int32_t>& order) const;
  // Puts each image's span in the place of its placeholder.
  void expand(turn_prepared::prompt&, const std::vector<planned_image>&, bool is_chat) const;
  void truncate(turn_prepared::prompt&, const chat_request&) const;
  void fit(turn_prepared::prompt&, const chat_request&, bool is_cut) const;

  prepare_config config_;
  std::shared_ptr<const text_side> text_; // shared with fan_out and the connections
};

} // namespace troupe
