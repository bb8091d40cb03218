// Compresses files for tests.
#pragma once

#include <string>

namespace nibble::test {

std::string gzipped(const std::string& text);

}  // namespace nibble::test
