// SHA-256 (FIPS 180-4), for names that other programs form from it.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace nibble
