// JSON as text: is it a value and of which kind, without changing its spelling. For arguments of calls (chat.md 3.3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class json_kind : uint8_t { invalid, string, integer, number, boolean, object, array, null };

// The kind of `text` as one JSON value (RFC 8259) with white space around it. `integer`: a number without fraction and
// exponent. Numbers of any size are valid; nesting deeper than 512 is not.
json_kind kind_of_json(std::string_view text);

// `text` without the JSON white space at both ends.
std::string_view trim_json(std::string_view text);

// The keys of the object `text`, as they are spelled. Precondition: kind_of_json(text) == object.
std::vector<std::string_view> keys_of_json(std::string_view text);

// Appends `text` escaped for the inside of a JSON string: quotes, backslashes and control characters, nothing else.
void append_json_escaped(std::string& out, std::string_view text);

} // namespace troupe
