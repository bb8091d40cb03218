// Makes the model card of a quantized export from the report: how it was made, and the resulting errors.
#pragma once

#include "checkpoint/model_card.h"
#include "quant/quant_report.h"

namespace nibble {

// Returns the card without times and paths, so that a resumed job writes the same bytes. command: a command line that
// readers can repeat.
ModelCard quantized_card(const QuantReport& report, Dialect dialect, std::string title, std::string base_model,
                         std::string command);

}  // namespace nibble
