// Image sources of a request: data URIs become bytes; everything else is refused (api.md 2.8).
#pragma once

#include <string>
#include <string_view>

namespace troupe {

// Decodes "data:<type>[;base64],<payload>". Empty return: `bytes` holds the file; else the reason, for the client.
// http(s) and file URLs and anything that is no data URI are refused. `max_bytes` limits the decoded size.
std::string read_image_source(std::string_view url, size_t max_bytes, std::string& bytes);

// Standard or URL-safe alphabet, padding optional, ASCII whitespace skipped. False: not base64.
bool decode_base64(std::string_view text, std::string& bytes);
bool decode_percent(std::string_view text, std::string& bytes);

} // namespace troupe
