#include "gpu_bench/quantize_timing.h"

#include "gpu_bench/quantize_data.h"
#include "kernels/cast_cuda.h"
#include "kernels/quantize_cuda.h"

#include <algorithm>
#include <functional>

namespace nibble::bench {
namespace {

using Launch = std::function<Status(int rotation)>;

class Timer {
public:
    Timer(const Stream& stream, const TimingOptions& options) : stream_(stream), options_(options) {}

    // Returns the median over `repeats` of a sequence of launches that lasts a few milliseconds.
    Result<Timing> time(std::string name, int64_t elements, double bytes, int rotations, const Launch& launch) {
        Timing t{std::move(name), elements, bytes};
        const int launches = std::max(rotations, static_cast<int>(2e-3 / (bytes / 4e12)) / rotations * rotations);
        for (int i = 0; i < rotations; ++i) NIBBLE_CHECK(launch(i).within(t.name));
        NIBBLE_CHECK(stream_.synchronize().within(t.name));
        NIBBLE_TRY(Event begin, Event::create());
        NIBBLE_TRY(Event end, Event::create());
        std::vector<double> ms;
        for (int r = 0; r < options_.repeats; ++r) {
            NIBBLE_CHECK(begin.record(stream_));
            for (int i = 0; i < launches; ++i) NIBBLE_CHECK(launch(i % rotations));
            NIBBLE_CHECK(end.record(stream_));
            NIBBLE_CHECK(end.synchronize().within(t.name));
            NIBBLE_TRY(const float total, end.since(begin));
            ms.push_back(total / launches);
        }
        std::sort(ms.begin(), ms.end());
        t.milliseconds = ms[ms.size() / 2];
        t.spread = (ms.back() - ms.front()) / t.milliseconds;
        if (copy_rate_ == 0) copy_rate_ = t.rate();
        t.fraction_of_copy = t.rate() / copy_rate_;
        return t;
    }
    bool wanted(const std::string& name) const {
        return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
    }

private:
    const Stream& stream_;
    const TimingOptions& options_;
    double copy_rate_ = 0;
};

// Fills a large device buffer with bell-shaped BF16 values by repeated copies of a smaller random piece.
Status fill_input(std::byte* device, int64_t bytes, const Matrix& piece, const Stream& stream) {
    const int64_t step = piece.view().bytes();
    NIBBLE_CHECK(copy_to_device(device, piece.data.data(), std::min(step, bytes), stream));
    for (int64_t at = step; at < bytes; at += step)
        NIBBLE_CHECK(copy_on_device(device + at, device, std::min(step, bytes - at), stream));
    return stream.synchronize();
}

}  // namespace

Result<std::vector<Timing>> time_all(const Stream& stream, DeviceArena& arena, const TimingOptions& options) {
    Timer timer(stream, options);
    std::vector<Timing> results;
    const DeviceArena::Mark start = arena.mark();
    {
        constexpr int64_t bytes = int64_t{2} << 30;
        NIBBLE_TRY(std::byte * from, arena.allocate(bytes));
        NIBBLE_TRY(std::byte * to, arena.allocate(bytes));
        NIBBLE_CHECK(fill_device(from, 0x5A, bytes, stream));
        NIBBLE_TRY(auto t, timer.time("copy 2 GiB", bytes / 2, 2.0 * bytes, 1,
                                      [&](int) { return copy_on_device(to, from, bytes, stream); }));
        results.push_back(std::move(t));
        arena.release(start);
    }
    const Matrix piece = make_data(Data::bell, DType::bf16, 4096, 4096, 1);
    for (const int log2 : options.log2_elements) {
        const int64_t cols = 8192, rows = (int64_t{1} << log2) / cols, n = rows * cols;
        const int rotations = log2 < 28 ? 8 : 2;
        NIBBLE_TRY(std::byte * in, arena.allocate(rotations * n * 2));
        NIBBLE_TRY(std::byte * codes, arena.allocate(rotations * n));
        NIBBLE_TRY(std::byte * scales, arena.allocate(rotations * (n / 16)));
        NIBBLE_TRY(float* floats, arena.allocate_array<float>(rotations * (rows + n / 128)));
        NIBBLE_TRY(auto* scan, arena.allocate_array<cuda::DeviceScan>(1));
        NIBBLE_CHECK(fill_input(in, rotations * n * 2, piece, stream));
        const auto view = [&](int r) { return MatrixView{DType::bf16, rows, cols, in + int64_t{r} * n * 2}; };
        NIBBLE_CHECK(cuda::reset_scan(scan, stream));
        NIBBLE_CHECK(cuda::scan(view(0), 0, scan, stream));

        const double elements = static_cast<double>(n);
        const auto add = [&](const std::string& name, double bytes, const Launch& launch) -> Status {
            if (!timer.wanted(name)) return Ok{};
            NIBBLE_TRY(auto t, timer.time(name, n, bytes, rotations, launch));
            results.push_back(std::move(t));
            return Ok{};
        };
        NIBBLE_CHECK(add("copy, 2.56 bytes per element", elements * 2.5625, [&](int r) {
            return copy_on_device(codes, in + int64_t{r} * n * 2, static_cast<int64_t>(elements * 2.5625 / 2), stream);
        }));
        NIBBLE_CHECK(add("scan", elements * 2, [&](int r) { return cuda::scan(view(r), 0, scan, stream); }));
        const Search four_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f}, all{Search::Kind::sweep};
        const WeightSpec specs[] = {
            {.format = Format::nvfp4},
            {.format = Format::nvfp4, .static_scales = true},
            {.format = Format::nvfp4, .static_scales = true, .normalization = 256.0f, .search = four_six},
            {.format = Format::nvfp4, .static_scales = true, .search = all},
            {.format = Format::nvfp4_bs32},
            {.format = Format::fp8},
            {.format = Format::fp8_row},
            {.format = Format::fp8_block128},
            {.format = Format::mxfp4},
            {.format = Format::mxfp8},
        };
        const auto code_at = [&](int r) { return reinterpret_cast<uint8_t*>(codes + int64_t{r} * n); };
        const auto scale_at = [&](int r) { return reinterpret_cast<uint8_t*>(scales + int64_t{r} * (n / 16)); };
        const auto float_at = [&](int r) { return floats + int64_t{r} * (rows + n / 128); };
        for (const WeightSpec& spec : specs) {
            const double written =
                static_cast<double>(code_bytes(spec.format, rows, cols) + block_scale_bytes(spec.format, rows, cols) +
                                    4 * float_scale_count(spec.format, rows, cols));
            NIBBLE_CHECK(add(to_string(spec), elements * 2 + written, [&](int r) {
                const QuantSpan out{spec.format, rows, cols, code_at(r), scale_at(r), float_at(r)};
                const float* g = format_layout(spec.format).tensor_scale ? &scan->amax : nullptr;
                return cuda::quantize(view(r), spec, {g, g}, out, {}, stream);
            }));
        }
        NIBBLE_TRY(auto* stats, arena.allocate_array<cuda::DeviceStats>(1));
        NIBBLE_TRY(auto* sums, arena.allocate_array<cuda::RowSums>(rows));
        for (const Format format : {Format::nvfp4, Format::fp8_block128}) {
            const double codes_read = static_cast<double>(code_bytes(format, rows, cols));
            NIBBLE_CHECK(add(fmt::format("measure {}", format_name(format)), elements * 2 + codes_read, [&](int r) {
                const QuantSpan out{format, rows, cols, code_at(r), scale_at(r), float_at(r), 1e-3f};
                return cuda::measure(view(r), out, stats, sums, stream);
            }));
        }
        using cuda::Activations;
        struct Kind {
            Activations kind;
            std::string_view name;
            bool swizzled;
            double written;  // bytes per element
        };
        const Kind kinds[] = {{Activations::nvfp4, "nvfp4", false, 0.5625},
                              {Activations::nvfp4, "nvfp4 swizzled", true, 0.5625},
                              {Activations::mxfp8, "mxfp8", false, 1.03125},
                              {Activations::mxfp8, "mxfp8 swizzled", true, 1.03125},
                              {Activations::fp8_token, "fp8 per token", false, 1.0 + 4.0 / 8192},
                              {Activations::fp8_group128, "fp8 1x128", false, 1.03125}};
        NIBBLE_TRY(float* input_scale, arena.allocate_array<float>(1));
        const float scale = 0.12f / 2688.0f;
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(input_scale),
                                    reinterpret_cast<const std::byte*>(&scale), sizeof scale, stream));
        for (const Kind& k : kinds)
            NIBBLE_CHECK(add(fmt::format("activations {}", k.name), elements * (2 + k.written), [&](int r) {
                return cuda::quantize_activations(view(r), k.kind, input_scale,
                                                  {code_at(r), scale_at(r), float_at(r), k.swizzled}, stream);
            }));

        struct Training {
            bool rotate, stochastic;
        };
        for (const Training t : {Training{true, false}, {false, true}, {true, true}})
            NIBBLE_CHECK(
                add(fmt::format("training nvfp4{}{}", t.rotate ? " rotated" : "", t.stochastic ? " stochastic" : ""),
                    elements * 2.5625, [&](int r) {
                        return cuda::quantize_training(view(r), input_scale, {t.rotate, t.stochastic, 0xB39Au, {1, 2}},
                                                       {code_at(r), scale_at(r)}, stream);
                    }));

        // Training operands as values: the source is read once for the tensor's scale and once for the values; each
        // direction is written once.
        if (timer.wanted("operand")) {
            NIBBLE_TRY(std::byte * of_rows, arena.allocate(2 * n));
            NIBBLE_TRY(std::byte * of_columns, arena.allocate(2 * n));
            NIBBLE_TRY(float* numbers, arena.allocate_array<float>(4));
            const CastRandom random{.id = 1, .draw = 2, .outer_step = static_cast<uint64_t>(cols / 16)};
            const CastRandom down_random{.id = 1, .draw = 2, .group_step = static_cast<uint64_t>(cols)};
            const auto source = [&](int r, bool down) {
                return cuda::CastSource{.x = view(r).data, .rows = rows, .cols = cols, .down = down};
            };
            struct Operand {
                std::string_view name;
                CastRule rule;
                bool down;
            };
            const Operand operands[] = {
                {"nvfp4", {.format = CastFormat::nvfp4}, false},
                {"nvfp4 stochastic", {.format = CastFormat::nvfp4, .stochastic = true}, false},
                {"nvfp4 16x16", {.format = CastFormat::nvfp4, .square = true}, false},
                {"nvfp4 four over six", {.format = CastFormat::nvfp4, .four_over_six = true}, false},
                {"nvfp4 rotated, down", {.format = CastFormat::nvfp4, .rotate = true}, true},
                {"nvfp4 rotated stochastic, down",
                 {.format = CastFormat::nvfp4, .rotate = true, .stochastic = true},
                 true},
                {"mxfp8", {.format = CastFormat::mxfp8}, false},
                {"mxfp8, down", {.format = CastFormat::mxfp8}, true},
            };
            for (const Operand& o : operands)
                NIBBLE_CHECK(add(fmt::format("operand {}", o.name),
                                 elements * (o.rule.format == CastFormat::mxfp8 ? 4 : 6), [&](int r) {
                                     return cuda::cast_values(source(r, o.down), o.rule, o.down ? down_random : random,
                                                              nullptr, {of_rows, numbers, numbers + 2}, stream);
                                 }));
            CastRule by_row{.format = CastFormat::nvfp4, .stochastic = true}, by_column = by_row;
            by_column.rotate = true;
            NIBBLE_CHECK(
                add("operand nvfp4 stochastic, and rotated stochastic, down, at once", elements * 8, [&](int r) {
                    return cuda::cast_both(source(r, false), by_row, random, by_column, down_random,
                                           {of_rows, of_columns, numbers, numbers + 2}, stream);
                }));
        }

        // Decoding reads the codes and scales of a kernel above, and overwrites the inputs.
        for (const Format format : {Format::nvfp4, Format::fp8_block128}) {
            for (int r = 0; r < rotations; ++r) {
                const QuantSpan target{format, rows, cols, code_at(r), scale_at(r), float_at(r)};
                NIBBLE_CHECK(
                    cuda::quantize(view(0), {.format = format}, {&scan->amax, &scan->amax}, target, {}, stream));
            }
            const double read =
                static_cast<double>(code_bytes(format, rows, cols) + block_scale_bytes(format, rows, cols));
            NIBBLE_CHECK(add(fmt::format("decode {} to bf16", format_name(format)), elements * 2 + read, [&](int r) {
                const QuantSpan from{format, rows, cols, code_at(r), scale_at(r), float_at(r)};
                return cuda::decode(from, input_scale, DType::bf16, in + int64_t{r} * n * 2, stream);
            }));
        }
        arena.release(start);
    }
    return results;
}

}  // namespace nibble::bench
