// The model card of a quantized export: what was done and what it cost, from the report.
#pragma once

#include "checkpoint/model_card.h"
#include "quant/quant_report.h"

namespace nibble {

// Without times and paths, so that a resumed job writes the same bytes. command: as users may repeat it.
ModelCard quantized_card(const QuantReport& report, Dialect dialect, std::string title, std::string base_model,
                         std::string command);

}  // namespace nibble
