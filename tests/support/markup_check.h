// A small checker of generated pages. It knows enough of HTML's grammar to find an unclosed tag, a stray '<' and an
// attribute without quotes.
#pragma once

#include "base/json.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::test {

struct MarkupTag {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;
    std::string attribute(std::string_view key) const;  // "" if absent
};

struct Markup {
    std::string error;            // empty: well-formed
    std::vector<MarkupTag> tags;  // start tags in order
};

Markup check_markup(std::string_view page);
bool is_utf8(std::string_view text);
// Returns the document that a page draws (page/html.h), or null if the page has none.
Json page_data(std::string_view page);

}  // namespace nibble::test
