// SHA-256 (FIPS 180-4) by libmd.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// Returns the digest of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace nibble
