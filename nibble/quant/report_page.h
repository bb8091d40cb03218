// The sections of the report page (report_html.h), each a complete <section> or empty when there is nothing to say.
#pragma once

#include "quant/quant_report.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace nibble {

std::string sqnr_section(const QuantReport& report);          // by layer and role
std::string distribution_section(const QuantReport& report);  // codes and block scales
std::string raised_section(const QuantReport& report);        // four instead of six
std::string worst_section(const QuantReport& report);
std::string carried_section(const QuantReport& report);
std::string plan_section(const QuantReport& report);
std::string warnings_section(const QuantReport& report);
std::string run_section(const QuantReport& report);

// <td>, optionally with a class and a number to sort by. `text` is escaped.
std::string cell(std::string_view text, std::string_view css = {});
std::string name_cell(std::string_view name);
std::string breakable_name(std::string_view name);  // escaped, may break after dots
std::string number_cell(std::string_view text, double sort_value);

// A table in a box that scrolls. `css`: "sortable", "filterable" ...; heads that start with '<' stand to the left;
// `rows` is HTML.
std::string table(std::string_view css, std::initializer_list<std::string_view> heads, std::string_view rows);

// CSS class of a format's colour.
std::string_view format_style(Format format);

}  // namespace nibble
