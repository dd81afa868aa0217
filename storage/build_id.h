// Which build of this program runs.
#pragma once

#include <string>

namespace troupe {

// The linker's hash of the whole program (NT_GNU_BUILD_ID), in hex; "" where it was linked without one.
const std::string& build_id();

} // namespace troupe
