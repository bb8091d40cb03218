// Hand-made safetensors files, valid and invalid, for the tests of io/.
#pragma once

#include "base/mapped_file.h"

#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace nibble::test {

// Returns length field, header and data.
inline std::string craft(std::string_view header, std::string_view data = {}) {
    const uint64_t length = header.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    return file.append(header).append(data);
}

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace nibble::test
