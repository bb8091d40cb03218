// What a compressed-tensors export cannot say in its weights file (checkpoint/exact_scales.h), once the scales are
// known.
#pragma once

#include "checkpoint/export.h"
#include "quant/quant_report.h"

namespace nibble {

// Writes nibble.json of the work folder again, with the scales of `report` that divisors do not hold, and says so among
// the report's warnings. `manifest`: the text that ExportSpec::manifest had. Nothing happens in other dialects.
Status keep_exact_scales(Dialect dialect, const std::string& manifest, const Export& out, QuantReport& report);

}  // namespace nibble
