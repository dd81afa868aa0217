// The prompt of DeepSeek-V4.1: messages and options in, spans of text out; plus the markers it is made of. Spec:
// chat.md 1.6, 2.
#pragma once

#include "model/chat_types.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class tokenizer;

// A request that cannot be rendered: HTTP 400 with `param` (chat.md section 6).
struct chat_error : std::runtime_error {
  chat_error(std::string what, std::string param) : std::runtime_error(std::move(what)), param(std::move(param)) {}
  std::string param;
};

// Ids of the markers in the loaded tokenizer, found by content.
struct marker_ids {
  int32_t bos = -1, eos = -1, pad = -1, system = -1, user = -1, assistant = -1, think_start = -1, think_end = -1;
  int32_t dsml = -1, image = -1, latest_reminder = -1;
  std::vector<int32_t> suppressed; // never sampled unless asked for by id (chat.md 5.7), in increasing order
};

// Throws std::runtime_error naming the marker that sections 2 and 3 need and the tokenizer lacks.
marker_ids find_markers(const tokenizer& tok);

// Throws std::runtime_error: a marker that is more than one token, a text that does not survive encode and decode, more
// tokens than the embedding has rows, or (`is_released`, 129280 tokens) ids other than the released ones. Spec: chat.md
// 1.6.
void self_check(const tokenizer& tok, const marker_ids& ids, int64_t embedding_rows, bool is_released = true);

// Pure. Throws chat_error: no messages, an image part or the image marker's text where it must not be, a task that is
// unknown, continue_final_message without a final assistant message.
rendered_prompt render_chat(const chat_input& input);

} // namespace troupe
