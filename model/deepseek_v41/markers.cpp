// Marker ids by content, and the start-up checks of the tokenizer (chat.md 1.6, 5.7).
#include "model/deepseek_v41/chat.h"
#include "model/deepseek_v41/chat_constants.h"
#include "model/tokenizer.h"

#include <algorithm>
#include <string_view>

namespace troupe {
namespace {

int32_t find(const tokenizer& tok, std::string_view content) {
  if (const auto id = tok.added_id(content)) return *id;
  throw std::runtime_error("tokenizer: added_tokens: expected the marker " + std::string(content) +
                           ", which the chat format needs, found no such entry");
}

std::string to_text(std::span<const int32_t> ids) {
  std::string s = "[";
  for (const int32_t id : ids) s += (s.size() > 1 ? ", " : "") + std::to_string(id);
  return s + "]";
}

void check_ids(const tokenizer& tok, std::string_view text, const std::vector<int32_t>& expected) {
  const auto found = tok.encode(text);
  if (found != expected)
    throw std::runtime_error("tokenizer self-check: \"" + std::string(text) + "\" must encode to " + to_text(expected) +
                             ", found " + to_text(found));
}

} // namespace

marker_ids find_markers(const tokenizer& tok) {
  marker_ids m;
  m.bos = find(tok, chat_text::bos), m.eos = find(tok, chat_text::eos), m.pad = find(tok, chat_text::pad);
  m.system = find(tok, chat_text::system), m.user = find(tok, chat_text::user);
  m.assistant = find(tok, chat_text::assistant), m.latest_reminder = find(tok, chat_text::latest_reminder);
  m.think_start = find(tok, chat_text::think_start), m.think_end = find(tok, chat_text::think_end);
  m.dsml = find(tok, chat_text::dsml), m.image = find(tok, chat_text::image);
  for (const auto& task : chat_text::tasks) find(tok, task.second);
  m.suppressed = {m.bos, m.pad, m.image};
  for (const added_token& t : tok.added()) {
    const auto begins = [&](std::string_view prefix) { return t.content.starts_with(prefix); };
    if (std::any_of(chat_text::reserved_prefixes.begin(), chat_text::reserved_prefixes.end(), begins))
      m.suppressed.push_back(t.id);
  }
  std::sort(m.suppressed.begin(), m.suppressed.end());
  return m;
}

void self_check(const tokenizer& tok, const marker_ids& ids, int64_t embedding_rows, bool is_released) {
  if (tok.size() > embedding_rows)
    throw std::runtime_error("tokenizer self-check: " + std::to_string(tok.size()) +
                             " tokens, but the embedding has only " + std::to_string(embedding_rows) + " rows");
  for (const int32_t id :
       {ids.system, ids.user, ids.assistant, ids.latest_reminder, ids.think_start, ids.think_end, ids.dsml, ids.image})
    check_ids(tok, tok.bytes(id), {id});
  for (const auto& task : chat_text::tasks) check_ids(tok, task.second, {find(tok, task.second)});
  for (const std::string_view text :
       {"", "Hello, world! 123\nsecond line", " \t\r\n\n  x", "\u4E2D\u6587 \U0001F600 e\u0301", "<think>a</think>"})
    if (tok.decode(tok.encode(text), false) != text)
      throw std::runtime_error("tokenizer self-check: \"" + std::string(text) + "\" comes back from its ids as \"" +
                               tok.decode(tok.encode(text), false) + "\"");
  check_ids(tok, "", {});
  if (!is_released || tok.size() != 129280) return; // the released vocabulary: its ids are known
  check_ids(tok, chat_text::system, {128799});
  check_ids(tok, chat_text::think_start, {128821});
  check_ids(tok, chat_text::dsml, {128825});
  check_ids(tok, chat_text::image, {129264});
  check_ids(tok, "Hello, world! 123\nsecond line", {19923, 14, 2058, 3, 223, 6895, 201, 10930, 2562});
}

} // namespace troupe
