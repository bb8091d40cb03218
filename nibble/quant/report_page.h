// The sections of the report page (report_html.h), each a complete <section> or empty when there is nothing to say.
#pragma once

#include "page/html.h"
#include "quant/quant_report.h"

#include <string>
#include <string_view>

namespace nibble {

std::string sqnr_section(const QuantReport& report);          // by layer and role
std::string distribution_section(const QuantReport& report);  // codes and block scales
std::string outputs_section(const QuantReport& report);       // before and after calibration
std::string raised_section(const QuantReport& report);        // four instead of six
std::string worst_section(const QuantReport& report);
std::string carried_section(const QuantReport& report);
std::string plan_section(const QuantReport& report);
std::string warnings_section(const QuantReport& report);
std::string gaps_section(const QuantReport& report);
std::string run_section(const QuantReport& report);

// CSS class of a format's colour.
std::string_view format_style(Format format);

}  // namespace nibble
