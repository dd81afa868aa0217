// Known tensors through the kernels that a rank's loaded weights need, before it serves.
#pragma once

namespace troupe {

class backend;
struct counters;

// What is wrong and has another form is parked: the log, /ready and /metrics tell. What has none throws
// std::runtime_error naming kernel, device and error, so the start is refused.
void check_kernels(backend& cuda_device, counters&);

} // namespace troupe
