#include "formats/ggml_dequantize.h"

#include "formats/ggml_blocks.h"

#include <cstring>

namespace nibble {
namespace {

using BlockDecoder = void (*)(const uint8_t* block, float* y);

void decode_f32(const uint8_t* block, float* y) { std::memcpy(y, block, sizeof(float)); }
void decode_f16(const uint8_t* block, float* y) { *y = ggml_detail::fp16_at(block); }
void decode_bf16(const uint8_t* block, float* y) {
    *y = bf16_to_float(static_cast<uint16_t>(block[0] | block[1] << 8));
}
void decode_f64(const uint8_t* block, float* y) {
    double value;
    std::memcpy(&value, block, sizeof(double));
    *y = static_cast<float>(value);
}

void decode_nvfp4_block(const uint8_t* block, float* y) { decode_nvfp4(block, y); }

// One instance per decoder: types with one element per block then need no indirect call per element.
template <BlockDecoder decode>
void decode_all(const uint8_t* blocks, int64_t count, int64_t block_bytes, int64_t block_elements, float* out) {
    for (int64_t b = 0; b < count; ++b) decode(blocks + b * block_bytes, out + b * block_elements);
}

using Decoder = void (*)(const uint8_t*, int64_t, int64_t, int64_t, float*);

Decoder decoder_of(GgmlType type) {
    switch (type) {
        case GgmlType::f32:
            return decode_all<decode_f32>;
        case GgmlType::f16:
            return decode_all<decode_f16>;
        case GgmlType::bf16:
            return decode_all<decode_bf16>;
        case GgmlType::f64:
            return decode_all<decode_f64>;
        case GgmlType::q4_0:
            return decode_all<decode_q4_0>;
        case GgmlType::q4_1:
            return decode_all<decode_q4_1>;
        case GgmlType::q5_0:
            return decode_all<decode_q5_0>;
        case GgmlType::q5_1:
            return decode_all<decode_q5_1>;
        case GgmlType::q8_0:
            return decode_all<decode_q8_0>;
        case GgmlType::q2_k:
            return decode_all<decode_q2_k>;
        case GgmlType::q3_k:
            return decode_all<decode_q3_k>;
        case GgmlType::q4_k:
            return decode_all<decode_q4_k>;
        case GgmlType::q5_k:
            return decode_all<decode_q5_k>;
        case GgmlType::q6_k:
            return decode_all<decode_q6_k>;
        case GgmlType::mxfp4:
            return decode_all<decode_mxfp4>;
        case GgmlType::nvfp4:
            return decode_all<decode_nvfp4_block>;
        default:
            return nullptr;
    }
}

}  // namespace

bool ggml_can_dequantize(GgmlType type) { return decoder_of(type) != nullptr; }

Status ggml_dequantize(GgmlType type, Bytes blocks, float* out, int64_t n, float tensor_scale) {
    const GgmlTypeInfo& info = ggml_type_info(type);
    const Decoder decode = decoder_of(type);
    if (!decode)
        return fail("no decoder for {} tensors: requantize the file to a K type, Q8_0 or BF16 first", info.name);
    if (n < 0 || n % info.block != 0)
        return fail("{} elements are not whole {} blocks of {}", n, info.name, info.block);
    const int64_t count = n / info.block;
    if (blocks.size() % info.bytes != 0 || static_cast<int64_t>(blocks.size() / info.bytes) != count)
        return fail("{} elements of {} take {} blocks of {} bytes, found {} bytes", n, info.name, count, info.bytes,
                    blocks.size());
    const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
    if (tensor_scale == 1.0f) {
        decode(bytes, count, info.bytes, info.block, out);
        return Ok{};
    }
    if (type != GgmlType::nvfp4) return fail("{} tensors have no tensor scale", info.name);
    for (int64_t b = 0; b < count; ++b) decode_nvfp4(bytes + b * info.bytes, out + b * info.block, tensor_scale);
    return Ok{};
}

}  // namespace nibble
