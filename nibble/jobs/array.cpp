#include "jobs/array.h"

#include "base/checked.h"
#include "base/philox.h"
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/stochastic.h"
#include "formats/swizzle.h"
#include "jobs/words.h"
#include "kernels/quantize_activations.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

namespace nibble {
namespace {

constexpr int64_t most_panel_elements = int64_t{1} << 17;  // size of a panel: stays in a core's cache
constexpr int64_t least_parallel = int64_t{1} << 16;       // elements from which several threads are faster

float load_element(ElementType type, const std::byte* at) {
    uint16_t half = 0;
    switch (type) {
        case ElementType::f32: {
            float value = 0;
            std::memcpy(&value, at, sizeof value);
            return value;
        }
        case ElementType::f16:
            std::memcpy(&half, at, sizeof half);
            return fp16_to_float(half);
        case ElementType::bf16:
            std::memcpy(&half, at, sizeof half);
            return bf16_to_float(half);
        case ElementType::e4m3:
            return e4m3_to_float(static_cast<uint8_t>(*at));
        case ElementType::e5m2:
            return e5m2_to_float(static_cast<uint8_t>(*at));
    }
    return 0;
}

const std::byte* row_of(const ArrayRows& x, int64_t row) {
    return x.data + (x.offsets.empty() ? row * x.row_bytes : x.offsets[static_cast<size_t>(row)]);
}

void read_row(const ArrayRows& x, int64_t row, float* out) {
    const std::byte* at = row_of(x, row);
    if (x.type == ElementType::f32 && x.col_bytes == 4) {
        std::memcpy(out, at, static_cast<size_t>(x.cols) * 4);
        return;
    }
    for (int64_t c = 0; c < x.cols; ++c, at += x.col_bytes) out[c] = load_element(x.type, at);
}

bool is_contiguous(const ArrayRows& x) {
    return x.offsets.empty() && x.col_bytes == element_bytes(x.type) &&
           (x.rows <= 1 || x.row_bytes == x.cols * x.col_bytes);
}

// Memory of one thread, kept from call to call up to a size that small calls need.
struct ArrayScratch {
    std::vector<float> wide;
    std::vector<uint16_t> narrow;
};

void rotate_row(float* row, int64_t cols, uint32_t signs) {
    for (int64_t c = 0; c < cols; c += 16) {
        float block[16];
        std::copy_n(row + c, 16, block);
        hadamard16(block, signs);
        std::copy_n(block, 16, row + c);
    }
}

// Rows [begin, begin + count) as the kernels take them: BF16, or F32 for F32 and F16.
MatrixView panel_of(const ArrayRows& x, const ArraySpec& spec, int64_t begin, int64_t count, ArrayScratch& scratch) {
    const bool plain = (x.type == ElementType::bf16 || x.type == ElementType::f32) && !spec.rotation;
    const DType dtype = x.type == ElementType::bf16 ? DType::bf16 : DType::f32;
    if (plain && is_contiguous(x)) return {dtype, count, x.cols, x.data + begin * x.cols * dtype_bytes(dtype)};
    const auto elements = static_cast<size_t>(count * x.cols);
    if (plain && x.type == ElementType::bf16) {
        scratch.narrow.resize(elements);
        for (int64_t r = 0; r < count; ++r) {
            const std::byte* at = row_of(x, begin + r);
            uint16_t* out = scratch.narrow.data() + r * x.cols;
            for (int64_t c = 0; c < x.cols; ++c) std::memcpy(out + c, at + c * x.col_bytes, sizeof *out);
        }
        return {DType::bf16, count, x.cols, reinterpret_cast<const std::byte*>(scratch.narrow.data())};
    }
    scratch.wide.resize(elements);
    for (int64_t r = 0; r < count; ++r) {
        float* row = scratch.wide.data() + r * x.cols;
        read_row(x, begin + r, row);
        if (spec.rotation) rotate_row(row, x.cols, *spec.rotation);
    }
    if (spec.weights.weights != DType::bf16)
        return {DType::f32, count, x.cols, reinterpret_cast<const std::byte*>(scratch.wide.data())};
    scratch.narrow.resize(elements);
    std::ranges::transform(scratch.wide, scratch.narrow.begin(), bf16_from_float);
    return {DType::bf16, count, x.cols, reinterpret_cast<const std::byte*>(scratch.narrow.data())};
}

float panel_element(const MatrixView& panel, int64_t at) {
    const auto type = panel.dtype == DType::bf16 ? ElementType::bf16 : ElementType::f32;
    return load_element(type, panel.data + at * dtype_bytes(panel.dtype));
}

// Replaces the codes of a panel by stochastically rounded ones; the scales are there. `first`: index of the panel's
// first element in the matrix.
void round_stochastically(const MatrixView& panel, const QuantSpan& out, uint64_t key, int64_t first) {
    const PhiloxStream stream{key, 0};
    const FormatLayout layout = format_layout(out.format);
    std::fill_n(out.codes, code_bytes(out.format, panel.rows, panel.cols), uint8_t{0});
    PhiloxBlock random{};
    int64_t at = 0;
    for (int64_t r = 0; r < panel.rows; ++r)
        for (int64_t c = 0; c < panel.cols; ++c, ++at) {
            const auto i = static_cast<uint64_t>(first + at);
            if (at == 0 || i % 8 == 0) random = stream.block(i / 8);
            const uint32_t bits = random.word[i / 2 % 4] >> (i % 2 * 16) & 0xFFFFu;
            const uint8_t scale = out.block_scales[at / layout.block];
            const float w = panel_element(panel, at);
            uint8_t code = 0;
            if (layout.e8m0_scales) {
                const float q = w * mx_inverse_scale(scale);
                code = static_cast<uint8_t>(e2m1_magnitude_stochastic(q, bits) | (q < 0 ? 8u : 0u));
            } else {
                code = nvfp4_code_stochastic(w, nvfp4_decode_scale(scale, out.tensor_scale), bits);
            }
            out.codes[at / 2] = static_cast<uint8_t>(out.codes[at / 2] | (at % 2 ? code << 4 : code));
        }
}

int64_t array_panel_rows(Format format, int64_t cols) {
    const int64_t rows = std::max<int64_t>(most_panel_elements / std::max<int64_t>(cols, 1), 1);
    return format == Format::fp8_block128 ? std::max<int64_t>(rows / fp8_tile * fp8_tile, fp8_tile) : rows;
}

// Calls work(panel, begin, count) for all panels; with a pool where that is faster.
template <class Work>
void for_panels(int64_t rows, int64_t cols, int64_t step, ThreadPool* pool, const Work& work) {
    const int64_t panels = ceil_div(rows, step);
    const auto one = [&](int64_t p) { work(p, p * step, std::min(step, rows - p * step)); };
    if (pool && panels > 1 && rows * cols >= least_parallel) return pool->parallel_for(panels, one);
    for (int64_t p = 0; p < panels; ++p) one(p);
}

// The best of the multipliers for the whole tensor: the first of least loss.
float searched_multiplier(const ArrayRows& x, const ArraySpec& spec, const QuantizeKernels& kernels, float amax,
                          int64_t step, ThreadPool* pool) {
    const std::vector<float> multipliers = search_multipliers(spec.weights.search);
    const int64_t panels = ceil_div(x.rows, step);
    std::vector<std::vector<double>> losses(static_cast<size_t>(panels), std::vector<double>(multipliers.size()));
    for_panels(x.rows, x.cols, step, pool, [&](int64_t p, int64_t begin, int64_t count) {
        ArrayScratch scratch;
        kernels.tensor_losses(panel_of(x, spec, begin, count, scratch), spec.weights, {.search = amax}, multipliers,
                              losses[static_cast<size_t>(p)]);
    });
    std::vector<double> sums(multipliers.size());
    for (const auto& panel : losses)
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += panel[i];
    return multipliers[static_cast<size_t>(std::ranges::min_element(sums) - sums.begin())];
}

bool searches_whole_tensor(const WeightSpec& spec) {
    return spec.search.kind == Search::Kind::multipliers &&
           (spec.format == Format::fp8 || (spec.format == Format::nvfp4 && !spec.static_scales));
}

const QuantizeKernels& array_kernels() {
    static const QuantizeKernels& fastest = **select_quantize_kernels();
    return fastest;
}

Status check_array(const ArrayRows& x, const ArraySpec& spec) {
    const FormatLayout layout = format_layout(spec.weights.format);
    const int64_t block = spec.rotation ? std::max(layout.whole_inputs(), 16)
                                        : std::max(layout.whole_inputs(), layout.code_bits == 4 ? 2 : 1);
    if (x.cols % block != 0)
        return fail(ErrorKind::shape, "{} needs columns in multiples of {}, x has {}", format_name(spec.weights.format),
                    block, x.cols);
    return Ok{};
}

// Calls copy(index, swizzled index, count) for all scales: four of a row follow each other in both layouts, so the
// count is a constant but at the end of a row.
template <class Copy>
void for_fours(int64_t rows, int64_t cols, const Copy& copy) {
    for (int64_t r = 0; r < rows; ++r) {
        int64_t at = r * cols, swizzled = swizzled_scale_offset(r, 0, cols), c = 0;
        for (; c + 4 <= cols; c += 4, at += 4, swizzled += 512) copy(at, swizzled, std::integral_constant<size_t, 4>{});
        if (c < cols) copy(at, swizzled, static_cast<size_t>(cols - c));
    }
}

template <class Out>
void store_rows(const float* from, int64_t elements, Out* to, Out (*round)(float)) {
    for (int64_t i = 0; i < elements; ++i) to[i] = round(from[i]);
}

}  // namespace

int64_t element_bytes(ElementType type) {
    switch (type) {
        case ElementType::f32:
            return 4;
        case ElementType::f16:
        case ElementType::bf16:
            return 2;
        case ElementType::e4m3:
        case ElementType::e5m2:
            return 1;
    }
    return 1;
}

Result<ArraySpec> array_spec(const ArrayOptions& options, ElementType type) {
    ArraySpec spec{.amax = options.amax, .key = options.key, .rotation = options.rotation};
    WeightSpec& w = spec.weights;
    NIBBLE_TRY(w.format, parse_format(options.format).within("format"));
    if (w.format == Format::none)
        return fail(ErrorKind::usage, "format: '{}' is not a quantized format", options.format);
    NIBBLE_TRY(w.arithmetic, parse_arithmetic(options.arithmetic).within("arithmetic"));
    const bool rounds_bf16 = type == ElementType::bf16 || type == ElementType::e4m3 || type == ElementType::e5m2;
    w.weights = rounds_bf16 || options.rotation ? DType::bf16 : type == ElementType::f16 ? DType::f16 : DType::f32;
    const bool nvfp4 = w.format == Format::nvfp4;
    if (options.four_over_six && !nvfp4)
        return fail(ErrorKind::usage, "four_over_six is for nvfp4, not {}", options.format);
    if (options.static_scales && !nvfp4)
        return fail(ErrorKind::usage, "static_scales is for nvfp4, not {}", options.format);
    w.static_scales = options.static_scales || options.four_over_six;
    if (options.four_over_six) {
        if (options.search != "max")
            return fail(ErrorKind::usage, "four_over_six chooses between two scales and takes no search '{}'",
                        options.search);
        w.normalization = 256.0f;
        w.search = {Search::Kind::multipliers, 1.0f, 1.5f, 0.5f};
    } else if (options.search == "mse") {
        w.search = {Search::Kind::multipliers, 0.25f, 4.0f, 0.1f};
        w.static_scales = nvfp4;
    } else if (options.search == "sweep") {
        w.search = {Search::Kind::sweep};
        w.static_scales = nvfp4;
    } else if (options.search != "max") {
        return fail(ErrorKind::usage, "search: '{}' is unknown; choices: max, mse, sweep", options.search);
    }
    const FormatLayout layout = format_layout(w.format);
    if (options.key && (layout.code_bits != 4 || layout.integers))
        return fail(ErrorKind::usage, "rounding='stochastic' is for 4-bit floats, not {}", options.format);
    if (options.amax && !layout.tensor_scale)
        return fail(ErrorKind::usage, "amax is for formats with a tensor scale, not {}", options.format);
    if (options.amax && !(*options.amax >= 0 && std::isfinite(*options.amax)))
        return fail(ErrorKind::usage, "amax: {} is not a finite number of at least 0", *options.amax);
    NIBBLE_CHECK(check(w).as(ErrorKind::usage));
    return spec;
}

Status quantize_array(const ArrayRows& x, const ArraySpec& spec, QuantSpan& out, ThreadPool* pool) {
    NIBBLE_CHECK(check_array(x, spec));
    const QuantizeKernels& kernels = array_kernels();
    const int64_t step = array_panel_rows(spec.weights.format, x.cols), panels = ceil_div(x.rows, step);
    // Small matrices are one panel, which stays in the scratch from the scan to the codes.
    ArrayScratch kept;
    const MatrixView whole = panels == 1 ? panel_of(x, spec, 0, x.rows, kept) : MatrixView{};
    const auto with_panel = [&](int64_t begin, int64_t count, const auto& work) {
        if (panels == 1) return work(whole);
        ArrayScratch scratch;
        work(panel_of(x, spec, begin, count, scratch));
    };
    std::vector<Scan> scans(static_cast<size_t>(panels));
    for_panels(x.rows, x.cols, step, pool, [&](int64_t p, int64_t begin, int64_t count) {
        with_panel(begin, count, [&](const MatrixView& panel) { scans[static_cast<size_t>(p)] = kernels.scan(panel); });
    });
    float amax = 0;
    for (int64_t p = 0; p < panels; ++p) {
        const Scan& scan = scans[static_cast<size_t>(p)];
        if (scan.first_nonfinite >= 0) {
            const int64_t at = p * step * x.cols + scan.first_nonfinite;
            return fail(ErrorKind::shape, "x has a value that is not finite in row {}, column {}", at / x.cols,
                        at % x.cols);
        }
        amax = std::max(amax, scan.amax);
    }
    if (spec.amax) amax = *spec.amax;
    TensorAmax maxima{.search = amax, .store = spec.weights.format == Format::fp8_block128 ? 0.0f : amax};
    if (searches_whole_tensor(spec.weights))
        maxima.store = amax * searched_multiplier(x, spec, kernels, amax, step, pool);
    out.tensor_scale = tensor_scale(spec.weights, maxima);
    for_panels(x.rows, x.cols, step, pool, [&](int64_t, int64_t begin, int64_t count) {
        with_panel(begin, count, [&](const MatrixView& panel) {
            const QuantSpan part = out.panel(begin, count);
            QuantStats stats;
            kernels.quantize(panel, spec.weights, maxima, part, stats);
            if (spec.key) round_stochastically(panel, part, *spec.key, begin * x.cols);
        });
    });
    return Ok{};
}

Status dequantize_array(const QuantView& q, ElementType type, void* out, ThreadPool* pool) {
    if (element_bytes(type) == 1) return fail(ErrorKind::usage, "dtype: choose float32, bfloat16 or float16");
    const QuantizeKernels& kernels = array_kernels();
    for_panels(q.rows, q.cols, array_panel_rows(q.format, q.cols), pool, [&](int64_t, int64_t begin, int64_t count) {
        const int64_t first = begin * q.cols, elements = count * q.cols;
        QuantView part = q.panel(begin, count);
        part.rows = count;
        if (type == ElementType::f32) return kernels.decode(part, static_cast<float*>(out) + first);
        std::vector<float> wide(static_cast<size_t>(elements));
        kernels.decode(part, wide.data());
        store_rows<uint16_t>(
            wide.data(), elements, static_cast<uint16_t*>(out) + first,
            type == ElementType::bf16 ? +[](float v) { return bf16_from_float(v); }
                                      : +[](float v) { return fp16_from_float(v); });
    });
    return Ok{};
}

void read_array(const ArrayRows& x, int64_t begin, int64_t count, float* out) {
    for (int64_t r = 0; r < count; ++r) read_row(x, begin + r, out + r * x.cols);
}

void decode_tiles(const ArrayRows& codes, const float* scales, int64_t tile_rows, float* out) {
    const int64_t across = ceil_div(codes.cols, int64_t{128});
    for (int64_t r = 0; r < codes.rows; ++r) {
        float* row = out + r * codes.cols;
        read_row(codes, r, row);
        for (int64_t c = 0; c < codes.cols; ++c) row[c] *= scales[r / tile_rows * across + c / 128];
    }
}

Status multiply_array(const ArrayRows& x, const PackedMatrix& w, const float* bias, const ArrayInputs& inputs,
                      ElementType type, void* out, ThreadPool& pool) {
    if (x.cols != w.cols())
        return fail(ErrorKind::shape, "the left operand has {} columns, the right one {}", x.cols, w.cols());
    if (!activation_fits(inputs.format, x.cols))
        return fail(ErrorKind::shape, "{} columns do not divide into blocks of {}", x.cols,
                    activation_name(inputs.format));
    if (element_bytes(type) == 1) return fail(ErrorKind::usage, "dtype: choose float32, bfloat16 or float16");
    NIBBLE_TRY(const MatmulKernels* const kernels, select_matmul_kernels());
    std::vector<float> wide, result;
    const float* in = reinterpret_cast<const float*>(x.data);
    if (x.type != ElementType::f32 || !is_contiguous(x)) {
        wide.resize(static_cast<size_t>(x.rows * x.cols));
        read_array(x, 0, x.rows, wide.data());
        in = wide.data();
    }
    auto* y = static_cast<float*>(out);
    if (type != ElementType::f32) {
        result.resize(static_cast<size_t>(x.rows * w.rows()));
        y = result.data();
    }
    kernels->matmul(
        w, {.x = in, .rows = x.rows, .stride = x.cols, .activation = inputs.format, .input_scale = inputs.scale},
        {.y = y, .stride = w.rows(), .bias = bias}, pool);
    if (type == ElementType::f32) return Ok{};
    store_rows<uint16_t>(
        y, x.rows * w.rows(), static_cast<uint16_t*>(out),
        type == ElementType::bf16 ? +[](float v) { return bf16_from_float(v); }
                                  : +[](float v) { return fp16_from_float(v); });
    return Ok{};
}

void swizzle_array(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out) {
    std::fill_n(out, swizzled_scale_bytes(rows, cols), uint8_t{0});
    for_fours(rows, cols,
              [&](int64_t at, int64_t swizzled, auto count) { std::memcpy(out + swizzled, scales + at, count); });
}

void unswizzle_array(const uint8_t* swizzled, int64_t rows, int64_t cols, uint8_t* out) {
    for_fours(rows, cols, [&](int64_t at, int64_t from, auto count) { std::memcpy(out + at, swizzled + from, count); });
}

void pack_codes(const uint8_t* codes, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; i += 2)
        out[i / 2] = static_cast<uint8_t>((codes[i] & 15u) | (codes[i + 1] & 15u) << 4);
}

void unpack_codes(const uint8_t* packed, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = packed[i / 2] >> (i % 2 * 4) & 15u;
}

}  // namespace nibble
