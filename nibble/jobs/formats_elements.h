// The number formats that `nibble formats` explains: elements, and blocks of elements with scales.
#pragma once

#include "formats/format.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct ElementFormat {
    std::string_view name;
    int exponent_bits, mantissa_bits, sign_bits;
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
    std::string_view note;
    std::string_view special;  // text about overflow and NaN

    int bits() const { return sign_bits + exponent_bits + mantissa_bits; }
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
std::span<const ElementFormat> element_formats();
const ElementFormat* find_element(std::string_view name);  // null: unknown name

struct BlockFormat {
    Format format;
    std::string_view rule;
};
std::span<const BlockFormat> block_formats();

}  // namespace nibble
