// What computes: the backend that the settings ask for and the machine has.
#pragma once

#include "actors/settings.h"

#include <memory>
#include <string>

namespace troupe {

class backend;
class collective;

// The setting `backend` with `auto` settled: cuda where a device answers, else host. Throws std::runtime_error saying
// why when cuda was asked for and no device can be used.
std::string choose_backend(const std::string& wanted);

// The device of one rank; `group` is borrowed. Precondition: c.backend is host or cuda.
std::unique_ptr<backend> make_device(const settings& c, int32_t rank, int32_t n_ranks, collective* group);

} // namespace troupe
