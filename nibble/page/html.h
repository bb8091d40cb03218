// Parts of self-contained HTML pages: inline style and script, inline SVG (page/svg.h), no network request (a content
// security policy forbids it), light and dark, printable, complete without the script. Text parameters are escaped
// here; parameters marked as HTML are not.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Returns the whole page around `main` (HTML). The browser reloads the page every `reload_seconds`; 0: never.
std::string document(std::string_view title, std::string_view main, int reload_seconds = 0);

// Returns a <td>, optionally with a class, or with a number to sort by.
std::string cell(std::string_view text, std::string_view css = {});
std::string name_cell(std::string_view name);
std::string breakable_name(std::string_view name);  // escapes; allows line breaks after dots
std::string number_cell(std::string_view text, double sort_value);

// Returns a table in a scrolling box. `css` is "sortable", "filterable" ...; heads that start with '<' are
// left-aligned; `rows` is HTML.
std::string table(std::string_view css, std::span<const std::string> heads, std::string_view rows);
inline std::string table(std::string_view css, std::initializer_list<std::string_view> heads, std::string_view rows) {
    return table(css, std::vector<std::string>(heads.begin(), heads.end()), rows);
}

// Returns a box with a headline number. `figure` and `more` are HTML.
std::string card(std::string_view what, std::string_view figure, std::string_view more, bool wide = false);
// Formats "1.23 GB" or "3 min 12 s" with small units (HTML).
std::string with_units(std::string_view text);

}  // namespace nibble
