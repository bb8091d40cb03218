// SHA-256 as hexadecimal text.
#pragma once

#include <string>

namespace nibble {

std::string sha256_hex(const std::string& data);

}  // namespace nibble
