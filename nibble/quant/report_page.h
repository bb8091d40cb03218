// The sections of the report page (report_html.h). Each function returns a complete <section>, or an empty string if it
// has no content.
#pragma once

#include "page/html.h"
#include "quant/quant_report.h"

#include <string>
#include <string_view>

namespace nibble {

std::string sqnr_section(const QuantReport& report);          // SQNR by layer and role
std::string distribution_section(const QuantReport& report);  // histograms of codes and block scales
std::string outputs_section(const QuantReport& report);       // errors of outputs before and after calibration
std::string raised_section(const QuantReport& report);        // blocks whose largest code is four instead of six
std::string worst_section(const QuantReport& report);
std::string carried_section(const QuantReport& report);
std::string plan_section(const QuantReport& report);
std::string warnings_section(const QuantReport& report);
std::string gaps_section(const QuantReport& report);
std::string run_section(const QuantReport& report);

// Returns the CSS class of a format's color.
std::string_view format_style(Format format);

}  // namespace nibble
