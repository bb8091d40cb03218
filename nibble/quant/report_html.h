// The error report as one HTML page that stands alone: inline SVG, inline style, no request to anywhere (a content
// security policy forbids it), light and dark, printable, complete without its script. The same report gives the same
// bytes.
#pragma once

#include "quant/quant_report.h"

#include <string>

namespace nibble {

// Names, reasons, settings and messages are untrusted and escaped. Tensors of one expert layer that were planned alike
// share a row, so a model of thousands of experts stays readable; the JSON of the report has every tensor.
std::string render_html(const QuantReport& report);

}  // namespace nibble
