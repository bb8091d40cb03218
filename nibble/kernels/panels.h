// The layout of PackedMatrix, equal for all kernels. A panel is 32 output rows. The bytes of a row are split into
// words; word w of row r is word number w * 32 + r of the panel:
//
//   F32    32 bits, one value           BF16   32 bits, two values, the even k in the low half
//   E4M3   16 bits, two codes           E2M1, INT4   32 bits, eight codes, k ascending upwards
//
// One vector register holds one word of 16 or 8 rows, and a shift exposes the next k of all of them. Padding rows and
// words are zero, including their scales.
//
// Block scales are never negative and never NaN. E4M3 scales are stored with five exponent bits; none is then
// subnormal, and one addition decodes them: float bits = (byte << 20) + (118 << 23). A zero scale becomes zero codes.
#pragma once

#include "base/large_pages.h"
#include "formats/minifloat.h"
#include "kernels/matmul.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

namespace nibble {

inline constexpr int64_t panel_rows = 32;

// Memory aligned to cache lines, with spare bytes at the end so that kernels may read a whole word at any byte.
template <class T>
class AlignedArray {
public:
    AlignedArray() = default;
    explicit AlignedArray(int64_t n, bool zeroed = true) : size_(n) {
        const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + 127) / 64 * 64;
        auto* p = static_cast<T*>(std::aligned_alloc(64, bytes));
        if (!p) throw std::bad_alloc();
        data_.reset(p, [](T* array) { std::free(array); });
        if (zeroed) std::memset(p, 0, bytes);
    }
    // Zeroed memory, taken from `memory` if it is not null.
    AlignedArray(int64_t n, SharedPages* memory) {
        if (!memory) {
            *this = AlignedArray(n);
            return;
        }
        const std::shared_ptr<std::byte> bytes = memory->take(n * int64_t{sizeof(T)});
        data_ = {bytes, reinterpret_cast<T*>(bytes.get())};
        size_ = n;
    }
    AlignedArray(AlignedArray&&) = default;
    AlignedArray& operator=(AlignedArray&&) = default;
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    int64_t size() const { return size_; }
    T& operator[](int64_t i) { return data_.get()[i]; }
    const T& operator[](int64_t i) const { return data_.get()[i]; }

private:
    std::shared_ptr<T> data_;  // one array; several may share pages
    int64_t size_ = 0;
};

enum class WeightCode : uint8_t { f32, bf16, e4m3, e2m1, int4 };
constexpr int codes_per_word(WeightCode code) {
    constexpr int codes[] = {1, 2, 2, 8, 8};
    return codes[static_cast<int>(code)];
}
constexpr int word_bytes(WeightCode code) { return code == WeightCode::e4m3 ? 2 : 4; }

inline constexpr uint32_t packed_scale_bias = 118u << 23;
constexpr float packed_e4m3_scale(uint8_t byte) { return float_from_bits((uint32_t{byte} << 20) + packed_scale_bias); }

struct PackedMatrix::Panels {
    int64_t rows = 0, cols = 0;
    Format format = Format::none;
    DType dtype = DType::f32;
    WeightCode code = WeightCode::f32;
    int block = 256;                     // B of the contract, from the weight alone
    int64_t words = 0;                   // per row
    AlignedArray<std::byte> data;        // [panels][words][32]
    AlignedArray<uint8_t> block_scales;  // nvfp4*, mx*: [panels][cols / block][32]
    AlignedArray<float> tile_scales;     // fp8_block128, int4: [panels][ceil(cols / 128)][32]
    AlignedArray<float> row_scales;      // [panels * 32]

    int64_t panels() const { return (rows + panel_rows - 1) / panel_rows; }
    int64_t blocks() const { return (cols + block - 1) / block; }
    int64_t panel_bytes() const { return words * panel_rows * word_bytes(code); }
    const std::byte* panel_words(int64_t p) const { return data.data() + p * panel_bytes(); }
    std::byte* panel_words(int64_t p) { return data.data() + p * panel_bytes(); }
    const uint8_t* panel_block_scales(int64_t p) const { return block_scales.data() + p * blocks() * panel_rows; }
    const float* panel_tile_scales(int64_t p) const { return tile_scales.data() + p * blocks() * panel_rows; }
};

}  // namespace nibble
