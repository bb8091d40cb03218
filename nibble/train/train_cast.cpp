#include "train/train_cast.h"

#include "formats/nvfp4.h"

#include <algorithm>
#include <atomic>

namespace nibble {
namespace {

float largest_of(const float* x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude(x[i]));
    return most;
}

struct Counts {
    int64_t zero_blocks = 0, saturated = 0;
};

// Rounds 16 adjacent values under one block scale, in place, to value(code) * scale.
void encode16(float* x, uint8_t scale, NvScale tensor, const PhiloxBlock* random, Counts& counts) {
    const float e = nv_element_scale(scale, tensor), s = e4m3_to_float(scale);
    bool any = false;
    for (int i = 0; i < nv_group; ++i) {
        const float y = x[i] * e;
        any |= x[i] != 0;
        counts.saturated += magnitude(y) > e2m1_max;
        const uint8_t code = random ? e2m1_stochastic_byte(y, static_cast<uint8_t>(random->word[i / 4] >> (i % 4 * 8)))
                                    : e2m1_from_float(y);
        x[i] = e2m1_to_float(code) * s;
    }
    counts.zero_blocks += any && scale == 0;
}

// Uses one scale for 16 rows and 16 columns. Missing rows at the edge are ignored.
void encode_square(CastOperand& o, int64_t row, int64_t col, NvScale tensor, Counts& counts) {
    const int64_t last = std::min(row + nv_group, o.rows);
    float b = 0;
    for (int64_t r = row; r < last; ++r) b = std::max(b, largest_of(o.values.data() + r * o.cols + col, nv_group));
    const uint8_t scale = nv_block_scale(b, tensor);
    for (int64_t r = row; r < last; ++r) o.scale_codes[static_cast<size_t>((r * o.cols + col) / nv_group)] = scale;
    for (int64_t r = row; r < last; ++r) encode16(o.values.data() + r * o.cols + col, scale, tensor, nullptr, counts);
}

void cast_nvfp4(CastOperand& o, const CastRule& rule, const CastRandom& random, ThreadPool& pool) {
    const float largest = nv_largest(rule);
    o.divisor = largest;
    o.scale_codes.resize(o.values.size() / nv_group);
    o.scale.assign(rule.row_scaled ? static_cast<size_t>(o.rows) : 1, o.amax);
    std::atomic<int64_t> zero_blocks = 0, saturated = 0;
    const int64_t step = rule.square ? nv_group : 1;
    pool.parallel_for((o.rows + step - 1) / step, [&](int64_t part) {
        Counts counts;
        const int64_t r = part * step;
        float* row = o.values.data() + r * o.cols;
        if (rule.row_scaled) o.scale[static_cast<size_t>(r)] = largest_of(row, o.cols);
        const NvScale tensor = nv_tensor_scale(o.scale[rule.row_scaled ? static_cast<size_t>(r) : 0], largest);
        for (int64_t c = 0; c < o.cols; c += nv_group) {
            if (rule.square) {
                encode_square(o, r, c, tensor, counts);
                continue;
            }
            PhiloxBlock bits{};
            if (rule.stochastic) bits = random.block(static_cast<uint64_t>(r), static_cast<uint64_t>(c / nv_group));
            const uint8_t scale = nv_choose_scale(row + c, largest_of(row + c, nv_group), rule, tensor);
            o.scale_codes[static_cast<size_t>((r * o.cols + c) / nv_group)] = scale;
            encode16(row + c, scale, tensor, rule.stochastic ? &bits : nullptr, counts);
        }
        zero_blocks += counts.zero_blocks;
        saturated += counts.saturated;
    });
    o.zero_blocks = zero_blocks;
    o.saturated = saturated;
}

// Rounds rows like kernels/quantize_activations.h.
void cast_inputs(CastOperand& o, float input_scale, ThreadPool& pool) {
    o.scale = {input_scale};
    o.scale_codes.resize(o.values.size() / nv_group);
    std::atomic<int64_t> saturated = 0;
    pool.parallel_for(o.rows, [&](int64_t r) {
        int64_t beyond = 0;
        for (int64_t c = 0; c < o.cols; c += nv_group) {
            float* x = o.values.data() + r * o.cols + c;
            const uint8_t code = nvfp4_dynamic_scale(largest_of(x, nv_group), input_scale);
            const float block = e4m3_to_float(code), scale = nvfp4_decode_scale(code, input_scale);
            o.scale_codes[static_cast<size_t>((r * o.cols + c) / nv_group)] = code;
            for (int i = 0; i < nv_group; ++i) {
                beyond += magnitude(x[i]) > e2m1_max * scale;
                x[i] = e2m1_to_float(nvfp4_code(x[i], scale)) * block;
            }
        }
        saturated += beyond;
    });
    o.saturated = saturated;
}

void cast_blocks(CastOperand& o, const CastRule& rule, ThreadPool& pool) {
    const int64_t blocks = o.cols / fp8_group, step = rule.square ? fp8_group : 1;
    o.scale = {1.0f};
    o.block_scales.resize(static_cast<size_t>(o.rows * blocks));
    pool.parallel_for((o.rows + step - 1) / step, [&](int64_t part) {
        const int64_t first = part * step, last = std::min(first + step, o.rows);
        for (int64_t b = 0; b < blocks; ++b) {
            float most = 0;
            for (int64_t r = first; r < last; ++r)
                most = std::max(most, largest_of(o.values.data() + r * o.cols + b * fp8_group, fp8_group));
            const BlockScale scale = fp8_block_scale(most, rule);
            for (int64_t r = first; r < last; ++r) {
                o.block_scales[static_cast<size_t>(r * blocks + b)] = scale.down;
                float* x = o.values.data() + r * o.cols + b * fp8_group;
                for (int64_t i = 0; i < fp8_group; ++i) x[i] = e4m3_to_float(scale.code(x[i]));
            }
        }
    });
}

void cast_mx(CastOperand& o, ThreadPool& pool) {
    o.scale = {1.0f};
    o.scale_codes.resize(o.values.size() / mx_group);
    pool.parallel_for(o.rows, [&](int64_t r) {
        for (int64_t c = 0; c < o.cols; c += mx_group) {
            float* x = o.values.data() + r * o.cols + c;
            const uint8_t scale = mx_scale_up(largest_of(x, mx_group));
            o.scale_codes[static_cast<size_t>((r * o.cols + c) / mx_group)] = scale;
            const float up = mx_inverse_scale(scale), down = e8m0_to_float(scale);
            for (int64_t i = 0; i < mx_group; ++i) x[i] = e4m3_rounded(x[i] * up) * down;
        }
    });
}

void cast_tensor(CastOperand& o, CastFormat format, std::optional<float> given, ThreadPool& pool) {
    const bool e4m3 = format == CastFormat::fp8;
    const float scale = given ? *given : fp8_current_scale(o.amax, e4m3 ? e4m3_max : e5m2_max);
    o.scale = {1 / scale};
    pool.parallel_for(o.rows, [&](int64_t r) {
        float* x = o.values.data() + r * o.cols;
        for (int64_t i = 0; i < o.cols; ++i) x[i] = e4m3 ? e4m3_rounded(x[i] * scale) : e5m2_rounded(x[i] * scale);
    });
}

}  // namespace

CastOperand cast_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRule& rule,
                      const CastRandom& random, std::optional<float> given, ThreadPool& pool, float elsewhere) {
    CastOperand o{.rows = rows, .cols = cast_padded(cols, rule), .amax = elsewhere};
    o.values.resize(static_cast<size_t>(rows * o.cols));
    std::vector<float> most(static_cast<size_t>(rows));
    pool.parallel_for(rows, [&](int64_t r) {
        float* to = o.values.data() + r * o.cols;
        for (int64_t c = 0; c < cols; ++c) to[c] = round_to_bf16(x[r * stride + c]);
        if (rule.rotate)
            for (int64_t c = 0; c < o.cols; c += nv_group) {
                float z[16];
                std::copy_n(to + c, 16, z);
                hadamard16(z, rotation_signs);
                for (int i = 0; i < 16; ++i) to[c + i] = round_to_bf16(z[i]);
            }
        most[static_cast<size_t>(r)] = largest_of(to, o.cols);
    });
    for (const float m : most) o.amax = std::max(o.amax, m);
    switch (rule.format) {
        case CastFormat::bf16:
            o.scale = {1.0f};
            break;
        case CastFormat::fp8:
        case CastFormat::fp8_e5m2:
            cast_tensor(o, rule.format, given, pool);
            break;
        case CastFormat::fp8_block:
        case CastFormat::fp8_block2:
            cast_blocks(o, rule, pool);
            break;
        case CastFormat::mxfp8:
            cast_mx(o, pool);
            break;
        case CastFormat::nvfp4:
            if (!rule.stored)
                cast_nvfp4(o, rule, random, pool);
            else if (given)
                cast_inputs(o, *given, pool);
            else
                o.scale = {1.0f};
            break;
    }
    return o;
}

CastOperand transposed_cast(const CastOperand& from, int64_t cols, ThreadPool& pool) {
    CastOperand o = from;
    o.scale_codes.clear();
    const bool blocks = !from.block_scales.empty();
    o.rows = cols;
    o.cols = blocks ? (from.rows + fp8_group - 1) / fp8_group * fp8_group : from.rows;
    o.values.assign(static_cast<size_t>(o.rows * o.cols), 0.0f);
    const int64_t here = blocks ? o.cols / fp8_group : 0, there = blocks ? from.cols / fp8_group : 0;
    o.block_scales.assign(static_cast<size_t>(o.rows * here), 1.0f);
    pool.parallel_for((o.rows + 31) / 32, [&](int64_t part) {
        for (int64_t r = part * 32; r < std::min(o.rows, part * 32 + 32); ++r) {
            for (int64_t c = 0; c < from.rows; ++c)
                o.values[static_cast<size_t>(r * o.cols + c)] = from.values[static_cast<size_t>(c * from.cols + r)];
            for (int64_t b = 0; b < here; ++b)
                o.block_scales[static_cast<size_t>(r * here + b)] =
                    from.block_scales[static_cast<size_t>(b * fp8_group * there + r / fp8_group)];
        }
    });
    return o;
}

}  // namespace nibble
