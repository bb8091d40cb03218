// Parses the JSON header of a safetensors file into entries and checks each of them; safetensors.cpp checks that they
// fit together.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct SafetensorsEntry {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  // in the data section; end - begin is the size of shape and dtype
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;  // in the order of the header; names may repeat
    std::map<std::string, std::string> metadata;
};

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json);

}  // namespace nibble
