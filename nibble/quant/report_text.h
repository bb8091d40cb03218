// Renders the error report for a terminal: sizes by format, SQNR by role, the worst tensors. Plain aligned text of up
// to 100 columns (long tensor names last in their line), no color, ends with a newline.
#pragma once

#include "quant/quant_report.h"

#include <string>

namespace nibble {

std::string report_text(const QuantReport& report);

}  // namespace nibble
