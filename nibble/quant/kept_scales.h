// Stores scales that the weights file of a compressed-tensors export cannot represent (checkpoint/exact_scales.h).
#pragma once

#include "checkpoint/export.h"
#include "quant/quant_report.h"

namespace nibble {

// Rewrites nibble.json of the work folder with the scales of `report` that divisors cannot represent, and adds a
// warning to the report. `manifest`: the text in ExportSpec::manifest. Does nothing for other dialects. Error: the file
// cannot be written.
Status keep_exact_scales(Dialect dialect, const std::string& manifest, const Export& out, QuantReport& report);

}  // namespace nibble
