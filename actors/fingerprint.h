// Names of what answers and cached rows come from.
#pragma once

#include "actors/config.h"
#include "model/model.h"

#include <cstdint>
#include <string>

namespace troupe {

// "fp_" and 16 hex digits, the same for the same build, files of `folder` and settings that change what is generated.
// Of weights it takes the names, the headers and 64 pieces of 4 KiB spread over each file, so that a start does not
// read all of them. The system_fingerprint of the API. Throws std::runtime_error naming a file that cannot be read.
std::string make_fingerprint(const std::string& folder, const settings&);

// What rows in a cache look like.
struct cached_form {
  cache_form rows = cache_form::floats;
  int64_t block_bytes = 0, snapshot_bytes = 0;
  bool has_drafts = false; // snapshots hold the drafter's rings
};

// Of cached rows: the fingerprint above and the same bytes in the same places. A file of weights that was changed in
// place shows by its time, wherever the change lies.
std::string make_cache_fingerprint(const std::string& system_fingerprint, const std::string& folder,
                                   const cached_form&);

} // namespace troupe
