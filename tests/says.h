// Whether a message has a part that it must have.
#pragma once

#include <string>

namespace troupe {

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

} // namespace troupe
