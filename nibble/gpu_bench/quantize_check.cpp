#include "gpu_bench/quantize_check.h"

#include "base/thread_pool.h"
#include "formats/fp8.h"
#include "formats/minifloat.h"
#include "formats/mx.h"
#include "formats/stochastic.h"
#include "formats/swizzle.h"
#include "gpu_bench/quantize_data.h"
#include "kernels/quantize_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace nibble::bench {
namespace {

constexpr uint8_t poison = 0xA5;
constexpr int64_t guard = 256;  // poisoned bytes after every output, which kernels must not change

// Rows per task of the reference.
int64_t rows_checked(Format format) { return format == Format::fp8_block128 ? 128 : 4; }

class Checker {
public:
    Checker(const Stream& stream, DeviceArena& arena, const CheckOptions& options, const QuantizeKernels& ref)
        : stream_(stream), arena_(arena), options_(options), ref_(ref) {}

    Result<CheckResult> weights(const WeightSpec& spec, DType dtype, int64_t rows, int64_t cols);

    Result<CheckResult> activations(cuda::Activations kind, std::string name, DType dtype, int64_t rows, int64_t cols);
    Result<CheckResult> training(bool rotate, bool stochastic, DType dtype, int64_t rows, int64_t cols);
    Result<CheckResult> losses(const WeightSpec& spec, DType dtype, int64_t rows, int64_t cols);

    bool wanted(const std::string& name) const {
        return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
    }

private:
    struct Output {
        std::byte* device = nullptr;
        int64_t bytes = 0;
    };
    Result<Output> output(int64_t bytes) {
        NIBBLE_TRY(std::byte * p, arena_.allocate(bytes + guard));
        NIBBLE_CHECK(fill_device(p, poison, bytes + guard, stream_));
        return Output{p, bytes};
    }
    // Checks the decoded values of the last output in both output types.
    Status decoded(const QuantMatrix& q, const QuantSpan& device, const float* tensor_scale, const std::string& where,
                   CheckResult& result);
    // Checks the losses of the panel against the fastest host kernels (whose tests compare them with ref).
    Status measured(const MatrixView& host, const MatrixView& device, const QuantMatrix& q, const QuantSpan& codes,
                    const std::string& where, CheckResult& result);
    Status compare(const Output& got, const void* want, std::string_view what, CheckResult& result);

    const Stream& stream_;
    DeviceArena& arena_;
    const CheckOptions& options_;
    const QuantizeKernels& ref_;
    ThreadPool pool_;
};

Status Checker::compare(const Output& got, const void* want, std::string_view what, CheckResult& result) {
    std::vector<uint8_t> host(static_cast<size_t>(got.bytes + guard));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(host.data()), got.device, got.bytes + guard, stream_));
    NIBBLE_CHECK(stream_.synchronize());
    const auto note = [&](int64_t at, int expected) {
        if (result.mismatches++ == 0)
            result.first = fmt::format("{} byte {}: {:#04x}, expected {:#04x}", what, at, host[size_t(at)], expected);
    };
    const auto* expected = static_cast<const uint8_t*>(want);
    if (got.bytes && std::memcmp(host.data(), expected, size_t(got.bytes)) != 0)
        for (int64_t i = 0; i < got.bytes; ++i)
            if (host[size_t(i)] != expected[i]) note(i, expected[i]);
    for (int64_t i = got.bytes; i < got.bytes + guard; ++i)
        if (host[size_t(i)] != poison) note(i, poison);
    return Ok{};
}

float element(const Matrix& m, int64_t index) {
    const std::byte* at = m.data.data() + index * dtype_bytes(m.dtype);
    if (m.dtype == DType::f32) {
        float x;
        std::memcpy(&x, at, 4);
        return x;
    }
    uint16_t code;
    std::memcpy(&code, at, 2);
    return bf16_to_float(code);
}

std::vector<TensorAmax> floors(float own) { return {{0, 0}, {own * 0.5f, own * 0.5f}}; }

// Quantizes FP8 1 x 128 with the functions of formats/.
void groups(const Matrix& x, QuantMatrix& q) {
    for (int64_t begin = 0; begin < x.rows * x.cols; begin += 128) {
        float amax = 0;
        for (int64_t i = begin; i < begin + 128; ++i) amax = std::max(amax, magnitude(element(x, i)));
        const float scale = fp8_scale(amax, Arithmetic::true_division);
        q.float_scales[size_t(begin / 128)] = scale;
        for (int64_t i = begin; i < begin + 128; ++i)
            q.codes[size_t(i)] = fp8_code(round_to_bf16(element(x, i)), scale);
    }
}

// Quantizes rows in blocks of 32 by the rule for inputs in formats/mx.h.
void mxfp4_inputs(const Matrix& x, QuantMatrix& q) {
    for (int64_t begin = 0; begin < x.rows * x.cols; begin += mx_block) {
        float amax = 0;
        for (int64_t i = begin; i < begin + mx_block; ++i) amax = std::max(amax, magnitude(element(x, i)));
        const uint8_t scale = mxfp4_input_scale(amax);
        q.block_scales[size_t(begin / mx_block)] = scale;
        const auto code = [&](int64_t i) {
            return mxfp4_input_code(round_to_bf16(element(x, i)), mx_inverse_scale(scale));
        };
        for (int64_t i = begin; i < begin + mx_block; i += 2)
            q.codes[size_t(i / 2)] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
    }
}

// Returns the tensor's own maximum, the larger maximum of a fusion partner, a maximum that is too small, and FP32
// values that no BF16 weight has.
std::vector<TensorAmax> maxima(float own) {
    const auto times = [own](float factor) { return std::min(own * factor, std::numeric_limits<float>::max()); };
    return {{own, own}, {own, times(2.7182817f)}, {times(0.37f), times(0.61f)}, {times(1.0001f), times(1.0003f)}};
}

Status Checker::decoded(const QuantMatrix& q, const QuantSpan& device, const float* tensor_scale,
                        const std::string& where, CheckResult& result) {
    std::vector<float> want(static_cast<size_t>(q.rows * q.cols));
    pool_.parallel_for(ceil_div(q.rows, rows_checked(q.format)), [&](int64_t i) {
        const int64_t step = rows_checked(q.format), begin = i * step, count = std::min(step, q.rows - begin);
        ref_.decode(q.view().panel(begin, count), want.data() + begin * q.cols);
    });
    std::vector<uint16_t> want_bf16(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(want[i])) return Ok{};  // the payload of a NaN is not defined
        want_bf16[i] = bf16_from_float(want[i]);
    }
    const auto n = static_cast<int64_t>(want.size());
    NIBBLE_TRY(const Output f32, output(n * 4));
    NIBBLE_TRY(const Output bf16, output(n * 2));
    NIBBLE_CHECK(cuda::decode(device, tensor_scale, DType::f32, f32.device, stream_));
    NIBBLE_CHECK(cuda::decode(device, tensor_scale, DType::bf16, bf16.device, stream_));
    NIBBLE_CHECK(compare(f32, want.data(), where + " f32", result));
    return compare(bf16, want_bf16.data(), where + " bf16", result);
}

Status Checker::measured(const MatrixView& host, const MatrixView& device, const QuantMatrix& q, const QuantSpan& codes,
                         const std::string& where, CheckResult& result) {
    NIBBLE_TRY(const QuantizeKernels* fastest, select_quantize_kernels());
    QuantStats want, got;
    fastest->measure(host, q.view(), want);
    NIBBLE_TRY(const Output counts, output(sizeof(cuda::DeviceStats)));
    NIBBLE_TRY(const Output sums, output(q.rows * int64_t{sizeof(cuda::RowSums)}));
    NIBBLE_CHECK(fill_device(counts.device, 0, counts.bytes, stream_));
    QuantView panel = codes;
    panel.tensor_scale = q.tensor_scale;
    NIBBLE_CHECK(cuda::measure(device, panel, reinterpret_cast<cuda::DeviceStats*>(counts.device),
                               reinterpret_cast<cuda::RowSums*>(sums.device), stream_));
    cuda::DeviceStats found{};
    std::vector<cuda::RowSums> rows(static_cast<size_t>(q.rows));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(&found), counts.device, counts.bytes, stream_));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(rows.data()), sums.device, sums.bytes, stream_));
    NIBBLE_CHECK(stream_.synchronize());
    cuda::add_stats(found, rows, q.view(), got);
    if (std::isnan(want.max_error) && std::isnan(got.max_error))  // the payload of a NaN sum is not defined
        for (QuantStats* s : {&want, &got}) s->max_error = 0, s->squared_error = s->squared_weight = 0;
    if (!(want == got) && result.mismatches++ == 0)
        result.first =
            fmt::format("{}: squared error {} of {}, zeros {}, saturated {}, flips {}; expected {} of {}, {}, {}, {}",
                        where, got.squared_error, got.squared_weight, got.zeros, got.saturated, got.sign_flips,
                        want.squared_error, want.squared_weight, want.zeros, want.saturated, want.sign_flips);
    return Ok{};
}

Result<CheckResult> Checker::weights(const WeightSpec& spec, DType dtype, int64_t rows, int64_t cols) {
    CheckResult result{fmt::format("{} {} of {} weights [{}, {}]", to_string(spec), dtype_name(dtype),
                                   dtype_name(spec.weights), rows, cols)};
    for (const Data data : all_data()) {
        const Matrix w = make_data(data, dtype, rows, cols, options_.seed);
        const Scan own = ref_.scan(w.view());
        const DeviceArena::Mark mark = arena_.mark();
        NIBBLE_TRY(std::byte * in, arena_.allocate(w.view().bytes()));
        NIBBLE_CHECK(copy_to_device(in, w.data.data(), w.view().bytes(), stream_));
        const MatrixView device_view{dtype, rows, cols, in};

        NIBBLE_TRY(const Output scanned, output(sizeof(cuda::DeviceScan)));
        auto* scan = reinterpret_cast<cuda::DeviceScan*>(scanned.device);
        NIBBLE_CHECK(cuda::reset_scan(scan, stream_));
        NIBBLE_CHECK(cuda::scan(device_view, 0, scan, stream_));
        const cuda::DeviceScan want{own.amax, 0, static_cast<uint64_t>(own.first_nonfinite)};
        NIBBLE_CHECK(compare(scanned, &want, fmt::format("{} scan", data_name(data)), result));

        const bool tiles = spec.format == Format::fp8_block128;  // the maximum is a lower bound for every tile's
        for (const TensorAmax& amax : tiles ? floors(own.amax) : maxima(own.amax)) {
            const DeviceArena::Mark outputs = arena_.mark();
            QuantMatrix q(spec.format, rows, cols);
            q.tensor_scale = tensor_scale(spec, amax);
            std::vector<QuantStats> stats(static_cast<size_t>(ceil_div(rows, rows_checked(spec.format))));
            pool_.parallel_for(static_cast<int64_t>(stats.size()), [&](int64_t i) {
                const int64_t step = rows_checked(spec.format), begin = i * step, count = std::min(step, rows - begin);
                ref_.quantize(w.view().panel(begin, count), spec, amax, q.span().panel(begin, count), stats[size_t(i)]);
            });
            uint64_t raised = 0;
            for (const QuantStats& s : stats) raised += static_cast<uint64_t>(s.raised_blocks);

            NIBBLE_TRY(const Output codes, output(static_cast<int64_t>(q.codes.size())));
            NIBBLE_TRY(const Output scales, output(static_cast<int64_t>(q.block_scales.size())));
            NIBBLE_TRY(const Output floats, output(static_cast<int64_t>(q.float_scales.size() * sizeof(float))));
            NIBBLE_TRY(const Output tensor, output(sizeof(float)));
            NIBBLE_TRY(const Output raised_out, output(sizeof raised));
            NIBBLE_TRY(std::byte * amax_in, arena_.allocate(sizeof amax + sizeof(float)));
            NIBBLE_CHECK(fill_device(raised_out.device, 0, sizeof raised, stream_));
            NIBBLE_CHECK(copy_to_device(amax_in, reinterpret_cast<const std::byte*>(&amax), sizeof amax, stream_));
            NIBBLE_CHECK(copy_to_device(amax_in + sizeof amax, reinterpret_cast<const std::byte*>(&q.tensor_scale),
                                        sizeof(float), stream_));
            const float* maxima_in = reinterpret_cast<const float*>(amax_in);
            const QuantSpan out{spec.format,
                                rows,
                                cols,
                                reinterpret_cast<uint8_t*>(codes.device),
                                reinterpret_cast<uint8_t*>(scales.device),
                                reinterpret_cast<float*>(floats.device)};
            const cuda::QuantizeOutputs extra{reinterpret_cast<float*>(tensor.device),
                                              reinterpret_cast<uint64_t*>(raised_out.device)};
            NIBBLE_CHECK(cuda::quantize(device_view, spec, {maxima_in, maxima_in + 1}, out, extra, stream_));

            const auto where = [&](std::string_view what) {
                return fmt::format("{} amax {} / {}: {}", data_name(data), amax.search, amax.store, what);
            };
            NIBBLE_CHECK(compare(scales, q.block_scales.data(), where("block scales"), result));
            NIBBLE_CHECK(compare(floats, q.float_scales.data(), where("float scales"), result));
            NIBBLE_CHECK(compare(codes, q.codes.data(), where("codes"), result));
            NIBBLE_CHECK(compare(raised_out, &raised, where("raised blocks"), result));
            const bool tensor_scale_written = format_layout(spec.format).tensor_scale;
            if (tensor_scale_written) NIBBLE_CHECK(compare(tensor, &q.tensor_scale, where("tensor scale"), result));
            NIBBLE_CHECK(decoded(q, out, reinterpret_cast<const float*>(amax_in) + 2, where("decoded"), result));
            NIBBLE_CHECK(measured(w.view(), device_view, q, out, where("measured"), result));
            ++result.cases;
            result.elements += rows * cols;
            arena_.release(outputs);
            if (!format_layout(spec.format).tensor_scale && !tiles) break;  // maxima do not affect local scales
        }
        arena_.release(mark);
    }
    return result;
}

Result<CheckResult> Checker::activations(cuda::Activations kind, std::string name, DType dtype, int64_t rows,
                                         int64_t cols) {
    using cuda::Activations;
    const Format format = kind == Activations::nvfp4   ? Format::nvfp4
                          : kind == Activations::mxfp4 ? Format::mxfp4
                          : kind == Activations::mxfp8 ? Format::mxfp8
                                                       : Format::fp8_row;
    CheckResult result{std::move(name)};
    for (const Data data : all_data()) {
        const Matrix x = make_data(data, dtype, rows, cols, options_.seed);
        const float amax = ref_.scan(x.view()).amax;
        const DeviceArena::Mark mark = arena_.mark();
        NIBBLE_TRY(std::byte * in, arena_.allocate(x.view().bytes()));
        NIBBLE_CHECK(copy_to_device(in, x.data.data(), x.view().bytes(), stream_));
        for (const float factor : {1.0f, 0.11f}) {  // well calibrated; inputs beyond the calibrated maximum
            QuantMatrix q(format, rows, cols);
            q.tensor_scale = amax > 0.0f ? amax * factor / 2688.0f : 1.0f;
            QuantStats stats;
            if (kind == Activations::fp8_group128) {
                q.float_scales.resize(size_t(rows * cols / 128));
                groups(x, q);
            } else if (kind == Activations::mxfp4) {  // inputs have a rule of their own
                mxfp4_inputs(x, q);
            } else {  // scales of activations are plain quotients
                ref_.quantize(x.view(), {.format = format, .arithmetic = Arithmetic::true_division}, {}, q.span(),
                              stats);
            }
            const bool block_scales = !q.block_scales.empty();
            for (const bool swizzled : {false, true}) {
                if (swizzled && !block_scales) continue;
                std::vector<uint8_t> want = q.block_scales;
                if (swizzled) {
                    const int64_t across = cols / format_layout(format).block;
                    want.resize(size_t(swizzled_scale_bytes(rows, across)));
                    swizzle_scales(q.block_scales.data(), rows, across, want.data());
                }
                const DeviceArena::Mark outputs = arena_.mark();
                NIBBLE_TRY(const Output codes, output(static_cast<int64_t>(q.codes.size())));
                NIBBLE_TRY(const Output scales, output(static_cast<int64_t>(want.size())));
                NIBBLE_TRY(const Output floats, output(static_cast<int64_t>(q.float_scales.size() * sizeof(float))));
                NIBBLE_TRY(std::byte * scale_in, arena_.allocate(sizeof(float)));
                NIBBLE_CHECK(copy_to_device(scale_in, reinterpret_cast<const std::byte*>(&q.tensor_scale),
                                            sizeof(float), stream_));
                const cuda::ActivationOutput out{reinterpret_cast<uint8_t*>(codes.device),
                                                 reinterpret_cast<uint8_t*>(scales.device),
                                                 reinterpret_cast<float*>(floats.device), swizzled};
                NIBBLE_CHECK(cuda::quantize_activations({dtype, rows, cols, in}, kind,
                                                        reinterpret_cast<const float*>(scale_in), out, stream_));
                const auto where = [&](std::string_view what) {
                    return fmt::format("{} x{} {}: {}", data_name(data), factor, swizzled ? "swizzled" : "plain", what);
                };
                NIBBLE_CHECK(compare(scales, want.data(), where("block scales"), result));
                NIBBLE_CHECK(compare(floats, q.float_scales.data(), where("float scales"), result));
                NIBBLE_CHECK(compare(codes, q.codes.data(), where("codes"), result));
                if (swizzled) {  // the same by the kernel that only reorders
                    const int64_t across = cols / format_layout(format).block;
                    NIBBLE_TRY(std::byte * plain, arena_.allocate(static_cast<int64_t>(q.block_scales.size())));
                    NIBBLE_TRY(const Output reordered, output(static_cast<int64_t>(want.size())));
                    NIBBLE_CHECK(copy_to_device(plain, reinterpret_cast<const std::byte*>(q.block_scales.data()),
                                                static_cast<int64_t>(q.block_scales.size()), stream_));
                    NIBBLE_CHECK(cuda::swizzle(reinterpret_cast<const uint8_t*>(plain), rows, across,
                                               reinterpret_cast<uint8_t*>(reordered.device), stream_));
                    NIBBLE_CHECK(compare(reordered, want.data(), where("reordered scales"), result));
                }
                ++result.cases;
                result.elements += rows * cols;
                arena_.release(outputs);
            }
        }
        arena_.release(mark);
    }
    return result;
}

Result<CheckResult> Checker::training(bool rotate, bool stochastic, DType dtype, int64_t rows, int64_t cols) {
    CheckResult result{fmt::format("training nvfp4{}{} {} [{}, {}]", rotate ? " rotated" : "",
                                   stochastic ? " stochastic" : "", dtype_name(dtype), rows, cols)};
    const PhiloxStream random{0x1234567890ABCDEFu, 77};
    constexpr uint32_t signs = 0xB39Au;
    for (const Data data : all_data()) {
        const Matrix x = make_data(data, dtype, rows, cols, options_.seed);
        const float amax = ref_.scan(x.view()).amax;
        const float tensor_scale = amax > 0.0f ? std::min(amax, 1e37f) / 2688.0f : 1.0f;
        QuantMatrix q(Format::nvfp4, rows, cols);
        pool_.parallel_for(rows * cols / 16, [&](int64_t block) {
            float w[16];
            float block_amax = 0;
            for (int i = 0; i < 16; ++i) w[i] = element(x, block * 16 + i);
            if (rotate) hadamard16(w, signs);
            for (float v : w) block_amax = std::max(block_amax, magnitude(v));
            const uint8_t scale = nvfp4_dynamic_scale(block_amax, tensor_scale);
            const float d = nvfp4_decode_scale(scale, tensor_scale);
            q.block_scales[size_t(block)] = scale;
            for (int i = 0; i < 16; ++i) {
                const float v = rotate ? w[i] : round_to_bf16(w[i]);
                const auto index = static_cast<uint64_t>(block * 16 + i);
                const uint8_t code = stochastic ? nvfp4_code_stochastic(v, d, random.bits16(index)) : nvfp4_code(v, d);
                q.codes[index / 2] = static_cast<uint8_t>(i % 2 ? q.codes[index / 2] | code << 4 : code);
            }
        });
        const DeviceArena::Mark mark = arena_.mark();
        NIBBLE_TRY(std::byte * in, arena_.allocate(x.view().bytes()));
        NIBBLE_CHECK(copy_to_device(in, x.data.data(), x.view().bytes(), stream_));
        NIBBLE_TRY(const Output codes, output(static_cast<int64_t>(q.codes.size())));
        NIBBLE_TRY(const Output scales, output(static_cast<int64_t>(q.block_scales.size())));
        NIBBLE_TRY(std::byte * scale_in, arena_.allocate(sizeof(float)));
        NIBBLE_CHECK(
            copy_to_device(scale_in, reinterpret_cast<const std::byte*>(&tensor_scale), sizeof(float), stream_));
        NIBBLE_CHECK(cuda::quantize_training(
            {dtype, rows, cols, in}, reinterpret_cast<const float*>(scale_in), {rotate, stochastic, signs, random},
            {reinterpret_cast<uint8_t*>(codes.device), reinterpret_cast<uint8_t*>(scales.device)}, stream_));
        NIBBLE_CHECK(compare(scales, q.block_scales.data(), fmt::format("{} block scales", data_name(data)), result));
        NIBBLE_CHECK(compare(codes, q.codes.data(), fmt::format("{} codes", data_name(data)), result));
        ++result.cases;
        result.elements += rows * cols;
        arena_.release(mark);
    }
    return result;
}

// Checks the losses of searches with one multiplier per tensor, and the bits of their sums.
Result<CheckResult> Checker::losses(const WeightSpec& spec, DType dtype, int64_t rows, int64_t cols) {
    CheckResult result{fmt::format("losses of {} {} [{}, {}]", to_string(spec), dtype_name(dtype), rows, cols)};
    const std::vector<float> multipliers = search_multipliers(spec.search);
    for (const Data data : all_data()) {
        const Matrix w = make_data(data, dtype, rows, cols, options_.seed);
        const float amax = ref_.scan(w.view()).amax;
        const DeviceArena::Mark mark = arena_.mark();
        NIBBLE_TRY(std::byte * in, arena_.allocate(w.view().bytes()));
        NIBBLE_CHECK(copy_to_device(in, w.data.data(), w.view().bytes(), stream_));
        std::vector<double> want(multipliers.size());
        pool_.parallel_for(static_cast<int64_t>(want.size()), [&](int64_t c) {
            const std::span<double> one(&want[size_t(c)], 1);
            ref_.tensor_losses(w.view(), spec, {amax, amax}, std::span(multipliers).subspan(size_t(c), 1), one);
        });
        NIBBLE_TRY(const Output got, output(static_cast<int64_t>(want.size() * sizeof(double))));
        NIBBLE_CHECK(fill_device(got.device, 0, got.bytes, stream_));
        NIBBLE_TRY(double* scratch,
                   arena_.allocate_array<double>(cuda::tensor_losses_scratch(rows, static_cast<int64_t>(want.size()))));
        NIBBLE_TRY(std::byte * amax_in, arena_.allocate(sizeof amax));
        NIBBLE_CHECK(copy_to_device(amax_in, reinterpret_cast<const std::byte*>(&amax), sizeof amax, stream_));
        NIBBLE_CHECK(cuda::tensor_losses({dtype, rows, cols, in}, spec, reinterpret_cast<const float*>(amax_in),
                                         multipliers, reinterpret_cast<double*>(got.device), scratch, stream_));
        if (std::none_of(want.begin(), want.end(), [](double x) { return std::isnan(x); }))
            NIBBLE_CHECK(compare(got, want.data(), fmt::format("{} losses", data_name(data)), result));
        ++result.cases;
        result.elements += rows * cols;
        arena_.release(mark);
    }
    return result;
}

}  // namespace

Result<std::vector<CheckResult>> check_all(const Stream& stream, DeviceArena& arena, const CheckOptions& options) {
    NIBBLE_TRY(const QuantizeKernels* ref, select_quantize_kernels("ref"));
    Checker checker(stream, arena, options, *ref);
    std::vector<CheckResult> results;
    const int64_t wide = 2048 + 128 + 96;  // a multiple of 32, but not a power of two
    for (const Arithmetic arithmetic : {Arithmetic::reciprocal, Arithmetic::true_division}) {
        const Search four_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f},
            many{Search::Kind::multipliers, 0.25f, 4.0f, 0.1f};
        const Search few{Search::Kind::multipliers, 0.8f, 1.2f, 0.1f}, all{Search::Kind::sweep};
        struct Weights {
            WeightSpec spec;
            int64_t cols;
            int64_t cost;  // divides the number of elements
        };
        const Weights cases[] = {
            {{.format = Format::nvfp4, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::nvfp4, .static_scales = true, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::nvfp4, .static_scales = true, .normalization = 256.0f, .arithmetic = arithmetic},
             wide,
             1},
            {{.format = Format::nvfp4_bs32, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::nvfp4,
              .static_scales = true,
              .normalization = 256.0f,
              .search = four_six,
              .arithmetic = arithmetic},
             wide,
             1},
            {{.format = Format::nvfp4, .static_scales = true, .search = four_six, .arithmetic = arithmetic}, wide, 2},
            {{.format = Format::nvfp4, .static_scales = true, .search = many, .arithmetic = arithmetic}, wide, 8},
            {{.format = Format::nvfp4, .static_scales = true, .search = all, .arithmetic = arithmetic}, wide, 8},
            {{.format = Format::fp8, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::fp8, .arithmetic = arithmetic}, 1021, 4},
            {{.format = Format::fp8_row, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::fp8_row, .arithmetic = arithmetic}, 1021, 4},
            {{.format = Format::fp8_row, .arithmetic = arithmetic}, 18000, 1},
            {{.format = Format::fp8_row, .search = few, .arithmetic = arithmetic}, wide, 4},
            {{.format = Format::fp8_block128, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::fp8_block128, .arithmetic = arithmetic}, 1021, 4},
            {{.format = Format::fp8_block128, .search = few, .arithmetic = arithmetic}, wide, 4},
            {{.format = Format::mxfp4, .arithmetic = arithmetic}, wide, 1},
            {{.format = Format::mxfp8, .arithmetic = arithmetic}, wide, 1},
        };
        const auto rows = [&](int64_t cols, int64_t cost) {
            return std::max<int64_t>(1, options.elements / cols / cost);
        };
        // Panels, and the type of the weights in them; F16 weights are passed as F32.
        for (auto [spec, cols, cost] : cases)
            for (const auto& [dtype, weights] : {std::pair{DType::bf16, DType::bf16},
                                                 {DType::f32, DType::bf16},
                                                 {DType::f32, DType::f16},
                                                 {DType::f32, DType::f32}}) {
                spec.weights = weights;
                if (!checker.wanted(fmt::format("{} {}", to_string(spec), dtype_name(dtype)))) continue;
                NIBBLE_TRY(auto result, checker.weights(spec, dtype, rows(cols, cost), cols));
                results.push_back(std::move(result));
            }
        const WeightSpec searched[] = {{.format = Format::fp8, .search = few, .arithmetic = arithmetic},
                                       {.format = Format::nvfp4, .search = few, .arithmetic = arithmetic}};
        for (const WeightSpec& spec : searched) {
            if (!checker.wanted("losses of " + to_string(spec))) continue;
            NIBBLE_TRY(auto result, checker.losses(spec, DType::bf16, rows(wide, 8), wide));
            results.push_back(std::move(result));
        }
    }
    using cuda::Activations;
    constexpr std::pair<Activations, std::string_view> kinds[] = {{Activations::nvfp4, "nvfp4"},
                                                                  {Activations::mxfp4, "mxfp4"},
                                                                  {Activations::mxfp8, "mxfp8"},
                                                                  {Activations::fp8_token, "fp8 per token"},
                                                                  {Activations::fp8_group128, "fp8 1x128"}};
    for (const auto& [kind, name] : kinds)
        for (const auto& [dtype, shape] :
             {std::pair{DType::bf16, 0}, {DType::bf16, 1}, {DType::f32, 0}, {DType::f32, 1}}) {
            // shape 0 has whole tiles of 128 rows and 256 columns; shape 1 has neither.
            const bool whole = shape == 0;
            const int64_t cols = whole ? 2048 + 256 : 2048 + 128;
            const int64_t count =
                std::max<int64_t>(1, options.elements / cols) / (whole ? 128 : 1) * (whole ? 128 : 1) +
                (whole ? 128 : 0);
            std::string full = fmt::format("activations {} {} [{}, {}]", name, dtype_name(dtype), count, cols);
            if (!checker.wanted(full)) continue;
            NIBBLE_TRY(auto result, checker.activations(kind, std::move(full), dtype, count, cols));
            results.push_back(std::move(result));
        }
    for (const auto& [rotate, stochastic] : {std::pair{false, true}, {true, false}, {true, true}})
        for (const DType dtype : {DType::bf16, DType::f32}) {
            if (!checker.wanted("training nvfp4")) continue;
            const int64_t cols = 2048 + 128, count = std::max<int64_t>(1, options.elements / cols);
            NIBBLE_TRY(auto result, checker.training(rotate, stochastic, dtype, count, cols));
            results.push_back(std::move(result));
        }
    return results;
}

}  // namespace nibble::bench
