// Configs for synthetic checkpoints: the released model's, chosen layers of one, and a config as the text of a file.
#pragma once

#include "model/deepseek_v41/config.h"

#include <cstdint>
#include <span>
#include <string>

namespace troupe::deepseek_v41 {

// The released model, all layers, draft stages and tower.                                   Spec: model.md section 1
config released_config();

// `from` with some of its layers only, in ascending order: each keeps its role (ratio, sources, Engram), lists and
// layer numbers are rewritten. Draft stages and tower stay. Throws std::runtime_error naming the layer: out of range,
// not ascending, one that reads the compressed rows, the selection or the candidates of a layer that is not chosen, a
// draft stage's tap that is not.
config choose_layers(const config& from, std::span<const int32_t> chosen);

// The config as a config.json (nested spelling) that reads back the same; `bits` for its quantization_config, a hint.
std::string config_text(const config&, const std::string& bits);

} // namespace troupe::deepseek_v41
