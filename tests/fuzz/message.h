// Checks that the error of a parser is one short line that a terminal can display.
#pragma once

#include "base/error.h"
#include "base/utf8.h"

#include <cstdlib>

inline void require(bool fact) {
    if (!fact) std::abort();
}

inline void require_message(const nibble::Error& error) {
    const std::string& text = error.message();
    require(!text.empty() && text.size() <= nibble::Error::most_bytes && nibble::printable(text) == text);
}
