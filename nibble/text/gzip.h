// Texts packed by gzip (RFC 1952), through zlib.
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

namespace nibble {

struct Unpacked {
    std::string text;
    bool cut = false;  // there is more than `limit` bytes; `text` is the beginning
};

// At most `limit` bytes of the text; a file may hold several members one after the other. What lies behind the limit is
// not looked at. Errors: not gzip, damaged, or ending early.
Result<Unpacked> gunzip(std::string_view packed, size_t limit);

}  // namespace nibble
