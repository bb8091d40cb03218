#include "checkpoint/scale_values.h"

#include "formats/minifloat.h"

#include <cstdint>
#include <cstring>

namespace nibble {
namespace {

template <class T, class Convert>
void widen_each(const std::byte* from, std::span<float> out, Convert convert) {
    for (size_t i = 0; i < out.size(); ++i) {
        T code;
        std::memcpy(&code, from + i * sizeof(T), sizeof code);
        out[i] = convert(code);
    }
}

}  // namespace

bool is_scale_dtype(DType dtype) {
    switch (dtype) {
        case DType::f32:
        case DType::f64:
        case DType::bf16:
        case DType::f16:
        case DType::f8_e8m0:
        case DType::u8:
            return true;
        default:
            return false;
    }
}

void widen_scales(DType dtype, const std::byte* from, std::span<float> out) {
    switch (dtype) {
        case DType::bf16:
            return widen_each<uint16_t>(from, out, bf16_to_float);
        case DType::f16:
            return widen_each<uint16_t>(from, out, fp16_to_float);
        case DType::f64:
            return widen_each<double>(from, out, [](double x) { return static_cast<float>(x); });
        case DType::f8_e4m3:
            return widen_each<uint8_t>(from, out, e4m3_to_float);
        case DType::f8_e8m0:
        case DType::u8:
            return widen_each<uint8_t>(from, out, e8m0_to_float);
        default:
            std::memcpy(out.data(), from, out.size_bytes());
    }
}

}  // namespace nibble
