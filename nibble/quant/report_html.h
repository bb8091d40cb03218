// Renders the error report as one HTML page that stands alone (page/html.h). The page holds {"report", "summary"}: the
// JSON report without its tensors and its plan, and the tensors in groups.
#pragma once

#include "quant/quant_report.h"

#include <string>

namespace nibble {

// Tensors of one expert layer with the same plan share a row, so a model with thousands of experts stays readable; the
// JSON report has every tensor. The same report gives the same bytes.
std::string render_html(const QuantReport& report);

}  // namespace nibble
