// A tokenizer for a vocabulary larger than its own.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::deepseek_v41 {

// The text of a tokenizer.json with as many tokens as `n_tokens`: those of `path`, and for every id beyond them a token
// that no text is encoded to and that is decoded to "<2048>", its number. As it is, where it has as many already.
// Throws std::runtime_error naming the file: unreadable, no tokenizer, more tokens than that.
std::string filled_tokenizer(const std::string& path, int64_t n_tokens);

} // namespace troupe::deepseek_v41
