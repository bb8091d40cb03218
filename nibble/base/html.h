// Text inside HTML, between tags or in a quoted attribute.
#pragma once

#include <string>

namespace nibble {

// & < > " ' become character references, spelled as Jinja's `escape` filter spells them.
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
