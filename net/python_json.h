// JSON the way Python's json.dumps(ensure_ascii=False) writes it: what the model saw in training. chat.md 2.7.
#pragma once

#include "net/json_tree.h"

#include <string>
#include <string_view>

namespace troupe {

void append_python_json(std::string& out, const json_value&);
std::string to_python_json(const json_value&);
// Shortest round-trip digits: fixed notation for exponents -4..15, else scientific ("1e-05", "1e+16").
std::string to_python_number(std::string_view json_number);

} // namespace troupe
