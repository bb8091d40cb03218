// Renders the error report as one self-contained HTML page: inline SVG and style, no external requests (a content
// security policy forbids them), light and dark, printable, complete without its script. The same report gives the same
// bytes.
#pragma once

#include "quant/quant_report.h"

#include <string>

namespace nibble {

// Names, reasons, settings and messages are untrusted and are escaped. Tensors of one expert layer with the same plan
// share a row, so a model with thousands of experts stays readable; the JSON report has every tensor.
std::string render_html(const QuantReport& report);

}  // namespace nibble
