// Compressed token ids of the Engram tables: ids whose texts differ only in case, accents or spacing share one.
// Spec: engram.md section 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class tokenizer;

// NFKC, NFD, no combining marks, lower case, runs of white space as one space, trimmed (one space alone stays).
// Precondition: `text` is valid UTF-8.
std::string normalise_token_text(std::string_view text);

// map[id] = compressed id, for every id of the tokenizer; the compressed ids are 0, 1, 2, ... in order of first use.
std::vector<int32_t> compressed_token_map(const tokenizer& tok);

} // namespace troupe
