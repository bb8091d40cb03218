// The JSON header of a safetensors file as entries, checked one by one; how the entries fit together is the file's
// concern.
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
    uint64_t begin = 0, end = 0;  // in the data section; end - begin equals shape times dtype
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;  // as listed; names may repeat
    std::map<std::string, std::string> metadata;
};

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json);

}  // namespace nibble
