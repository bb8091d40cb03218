#include "gpu_bench/quantize_data.h"

#include "base/thread_pool.h"
#include "formats/minifloat.h"

#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

namespace nibble::bench {
namespace {

constexpr std::array kinds{Data::bell, Data::all_bf16, Data::narrow_bf16, Data::ties, Data::structured,
                           Data::wide, Data::large,    Data::tiny,        Data::zero};
constexpr std::array<std::string_view, kinds.size()> names{"bell", "all_bf16", "narrow_bf16", "ties", "structured",
                                                           "wide", "large",    "tiny",        "zero"};

uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

float value(Data data, uint64_t index, uint64_t seed) {
    const uint64_t r = mix(index ^ mix(seed));
    const float sign = r >> 63 ? -1.0f : 1.0f;
    switch (data) {
        case Data::bell: {
            const double u = (static_cast<double>(r >> 11) + 1.0) * 0x1p-53,
                         v = static_cast<double>(mix(r) >> 11) * 0x1p-53;
            return static_cast<float>(0.02 * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
        }
        case Data::all_bf16: {
            const auto code = static_cast<uint16_t>(r);
            return (code & 0x7F80u) == 0x7F80u ? 0.0f : bf16_to_float(code);
        }
        case Data::narrow_bf16:
            return bf16_to_float(static_cast<uint16_t>((r & 0x807Fu) | (120u + (r >> 20) % 8u) << 7));
        case Data::ties:
            return sign * std::ldexp(static_cast<float>(r % 16), -static_cast<int>((r >> 8) % 6));
        case Data::structured: {  // midpoint * (an E4M3 value) * g / 2688 with g = 1.75
            constexpr float mid[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
            const float scale = e4m3_to_float(static_cast<uint8_t>(0x60u + (r >> 8) % 31u));
            return r % 97 == 0 ? 1.75f : sign * round_to_bf16(mid[r % 8] * scale * 1.75f / 2688.0f);
        }
        case Data::wide: {
            if (r % 5 == 0) return sign * 0.0f;
            return sign * std::ldexp(1.0f + static_cast<float>((r >> 8) & 127u) / 128.0f,
                                     static_cast<int>((r >> 20) % 71u) - 60);
        }
        case Data::large:
            return sign * std::ldexp(1.0f + static_cast<float>((r >> 8) & 127u) / 128.0f,
                                     static_cast<int>((r >> 20) % 30u) + 93);
        case Data::tiny:
            return bf16_to_float(static_cast<uint16_t>((r & 0x80FFu) | ((r >> 20) % 16 == 0 ? 0x100u : 0u)));
        case Data::zero:
            return r % 3 ? 0.0f : -0.0f;
    }
    return 0.0f;
}

}  // namespace

std::span<const Data> all_data() { return kinds; }
std::string_view data_name(Data data) { return names[static_cast<size_t>(data)]; }

Matrix make_data(Data data, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
    Matrix m(dtype, rows, cols);
    static ThreadPool pool;
    pool.parallel_for(rows, [&](int64_t row) {
        std::byte* at = m.data.data() + row * cols * dtype_bytes(dtype);
        for (int64_t j = 0; j < cols; ++j) {
            const auto index = static_cast<uint64_t>(row * cols + j);
            const float x = value(data, index, seed);
            if (dtype == DType::bf16) {
                const uint16_t code = bf16_from_float(x);
                std::memcpy(at + 2 * j, &code, 2);
            } else {  // sets low bits of the mantissa, sometimes exactly half way between BF16 neighbours
                const uint64_t r = mix(index * 3 + seed);
                const uint32_t low = r % 4 == 0 ? 0x8000u : r % 4 == 1 ? 0u : static_cast<uint32_t>(r >> 40) & 0xFFFFu;
                const uint32_t bits = data == Data::zero ? float_bits(x) : float_bits(round_to_bf16(x)) | low;
                std::memcpy(at + 4 * j, &bits, 4);
            }
        }
    });
    return m;
}

}  // namespace nibble::bench
