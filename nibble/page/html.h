// Parts of pages that stand alone: inline style and script, inline SVG (page/svg.h), no request to anywhere (a content
// security policy forbids it), light and dark, printable, complete without its script. Text is untrusted and escaped
// here; what is HTML says so.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// The whole page around `main` (HTML). A page that is written anew while it is looked at is read again by the browser
// every `reload_seconds`; 0: never.
std::string document(std::string_view title, std::string_view main, int reload_seconds = 0);

// <td>, optionally with a class and a number to sort by.
std::string cell(std::string_view text, std::string_view css = {});
std::string name_cell(std::string_view name);
std::string breakable_name(std::string_view name);  // escaped, may break after dots
std::string number_cell(std::string_view text, double sort_value);

// A table in a box that scrolls. `css`: "sortable", "filterable" ...; heads that start with '<' stand to the left;
// `rows` is HTML.
std::string table(std::string_view css, std::span<const std::string> heads, std::string_view rows);
inline std::string table(std::string_view css, std::initializer_list<std::string_view> heads, std::string_view rows) {
    return table(css, std::vector<std::string>(heads.begin(), heads.end()), rows);
}

// A headline number. `figure` and `more` are HTML.
std::string card(std::string_view what, std::string_view figure, std::string_view more, bool wide = false);
// "1.23 GB" or "3 min 12 s" with the units set small (HTML).
std::string with_units(std::string_view text);

}  // namespace nibble
