// Forms of kernels that the self-check found wrong.
#pragma once

#include "gpu/cuda_lane.h"
#include "gpu/self_check.h"

namespace troupe {

// The lane no longer chooses the form that serves this; false: it has no other one, nothing changed.
bool take_out_of_use(const parkable&, cuda_lane&);

} // namespace troupe
