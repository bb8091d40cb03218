// Escapes text for HTML, between tags or in a quoted attribute.
#pragma once

#include <string>

namespace nibble {

// Replaces & < > " ' by the character references of Jinja's `escape` filter.
inline void append_html(std::string& out, char c) {
    switch (c) {
        case '&':
            out += "&amp;";
            break;
        case '<':
            out += "&lt;";
            break;
        case '>':
            out += "&gt;";
            break;
        case '"':
            out += "&#34;";
            break;
        case '\'':
            out += "&#39;";
            break;
        default:
            out += c;
    }
}

}  // namespace nibble
