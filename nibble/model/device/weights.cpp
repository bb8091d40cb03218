#include "model/device/weights.h"

#include "base/checked.h"
#include "formats/minifloat.h"
#include "kernels/w4a16_record.h"
#include "model/cpu/widen.h"

#include <algorithm>

namespace nibble {
namespace {

// Reorders values of the rows of gate, then up: 16 of gate, 16 of up, and so on.
std::vector<float> by_sixteen(std::span<const float> rows) {
    std::vector<float> out;
    const size_t half = rows.size() / 2;
    for (size_t tile = 0; tile < half; tile += 16)
        for (const size_t from : {tile, half + tile})
            out.insert(out.end(), rows.begin() + ptrdiff_t(from), rows.begin() + ptrdiff_t(from + 16));
    return out;
}

std::byte* host_bytes(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

}  // namespace

// W4A16: NVFP4 and MXFP4 weights with BF16 inputs are packed as records (kernels/w4a16_record.h).
bool DeviceWeights::runs_on_records(const Linear& l) {
    return (l.format == Format::nvfp4 || l.format == Format::mxfp4) && l.activation == ActivationFormat::none &&
           l.cols % 16 == 0;
}

// W8A8: FP8 weights with FP8 inputs keep their codes for the FP8 tensor cores. check_inputs() has checked that weights
// with 128 x 128 tiles have inputs with groups of 128.
bool DeviceWeights::runs_on_codes(const Linear& l) {
    const bool weights = l.format == Format::fp8 || l.format == Format::fp8_row || l.format == Format::fp8_block128;
    const bool inputs = l.activation == ActivationFormat::fp8 || l.activation == ActivationFormat::fp8_token ||
                        l.activation == ActivationFormat::fp8_group128;
    return weights && inputs && cuda::multiplies_codes();
}

int64_t DeviceWeights::panel_rows(int64_t cols) {
    return std::max<int64_t>(128, staging_bytes / 4 / std::max<int64_t>(cols, 1) / 128 * 128);
}

Status DeviceWeights::check_inputs(const Linear& l) {
    if (l.cols % 8) return fail("'{}.weight' has {} columns: --device cuda needs a multiple of 8", l.name, l.cols);
    if (l.format == Format::int4) return fail("'{}.weight' is int4: --device cuda has no kernel for it", l.name);
    if ((l.activation == ActivationFormat::fp8_group128) != (l.format == Format::fp8_block128) &&
        l.activation != ActivationFormat::none)
        return fail("'{}.weight' is {} with {} inputs: --device cuda has no kernel for it", l.name,
                    format_name(l.format), activation_name(l.activation));
    return Ok{};
}

// Returns true if these linears can be one product. With 128 x 128 scales every part must begin at the start of a tile.
bool DeviceWeights::stackable(std::span<const Linear> parts) {
    return parts[0].format != Format::fp8_block128 ||
           std::ranges::all_of(parts.first(parts.size() - 1), [](const Linear& l) { return l.rows % 128 == 0; });
}

DeviceWeights::DeviceWeights(const Checkpoint& checkpoint, DeviceArena* arena, const Stream* stream)
    : checkpoint_(&checkpoint), arena_(arena), stream_(stream) {
    const auto tensors = checkpoint.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].name, i);
}

Result<DeviceWeights> DeviceWeights::loader(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream) {
    DeviceWeights w(checkpoint, &arena, &stream);
    // The staging buffer is the end of the arena. The mark is restored, so weights are allocated from the start and
    // take the place of the staging buffer only after loading.
    const DeviceArena::Mark mark = arena.mark();
    NIBBLE_CHECK(arena.allocate(arena.capacity() - mark - staging_bytes));
    NIBBLE_TRY(w.staging_, arena.allocate(staging_bytes));
    w.refused_ = reinterpret_cast<uint32_t*>(w.staging_ + staging_bytes - 256);
    arena.release(mark);
    return w;
}

Result<std::byte*> DeviceWeights::allocate(int64_t bytes) {
    bytes_ += round_up(bytes, DeviceArena::alignment);
    // Planning returns an address that is never read. It must not be null, because kernels are chosen by which scales
    // and biases are present.
    if (mode() == Mode::plan) return reinterpret_cast<std::byte*>(uintptr_t{4096});
    return arena_->allocate(bytes);
}

Result<const float*> DeviceWeights::vector(std::span<const float> values) {
    if (values.empty()) return nullptr;
    const int64_t bytes = std::ssize(values) * 4;
    NIBBLE_TRY(std::byte * p, vectors_ ? vectors_->allocate(bytes) : allocate(bytes));
    vector_bytes_ += round_up(bytes, DeviceArena::alignment);
    if (mode() == Mode::load) NIBBLE_CHECK(copy_to_device(p, host_bytes(values.data()), bytes, *stream_));
    return reinterpret_cast<const float*>(p);
}

Result<const float*> DeviceWeights::constant(float value, int64_t count) {
    return vector(std::vector<float>(static_cast<size_t>(count), value));
}

Result<size_t> DeviceWeights::find(const Linear& linear) const {
    // A stack of experts may have the name of its module.
    for (const std::string& name : {linear.name + ".weight", linear.name})
        if (const auto at = index_.find(name); at != index_.end()) return at->second;
    return fail("tensor '{}.weight' is missing", linear.name);
}

namespace {

// Blocks whose scale has no code in a record. A block of zeros becomes zeros under a scale of one, which has the same
// value; any other block is an error.
struct FixedBlocks {
    std::vector<uint8_t> codes, scales;  // copies with the fixed blocks; empty: nothing was fixed

    static Result<FixedBlocks> make(const QuantView& from, std::string_view name) {
        const bool mx = from.format == Format::mxfp4;
        const int64_t blocks = block_scale_bytes(from.format, from.rows, from.cols), bytes = mx ? 16 : 8;
        FixedBlocks out;
        for (int64_t i = 0; i < blocks; ++i) {
            const uint8_t s = from.block_scales[i];
            if (mx ? w4a16::packable_mx_scale(s) : w4a16::packable_scale(s)) continue;
            const std::span codes(from.codes + i * bytes, static_cast<size_t>(bytes));
            const bool zeros = mx ? std::ranges::all_of(codes, [](uint8_t c) { return (c & 0x77) == 0; }) : s == 0;
            if (!zeros || (mx && s == 255))
                return fail("'{}.weight': a block scale is {}; --device cuda holds {}", name,
                            mx ? e8m0_to_float(s) : e4m3_to_float(s), mx ? "2^-118 to 2^8" : "positive ones");
            if (out.scales.empty()) {
                out.codes.assign(from.codes, from.codes + code_bytes(from.format, from.rows, from.cols));
                out.scales.assign(from.block_scales, from.block_scales + blocks);
            }
            out.scales[static_cast<size_t>(i)] = mx ? 127 : 0x38;
            std::fill_n(out.codes.begin() + static_cast<ptrdiff_t>(i * bytes), bytes, uint8_t{0});
        }
        return out;
    }
};

}  // namespace

Result<QuantView> DeviceWeights::stage_quant(size_t tensor, const Linear& l, int64_t row, int64_t count, bool records,
                                             Scales& scales) {
    QuantMatrix scratch;
    NIBBLE_TRY(QuantView from, checkpoint_->read_quant(tensor, l.first_row + row, count, scratch));
    if (row == 0) scales.one = from.tensor_scale;
    std::vector<uint8_t> codes_of_halves, scales_of_halves;
    if (l.alternating) {
        codes_of_halves = separated(from.codes, count, code_bytes(from.format, 1, from.cols));
        from.codes = codes_of_halves.data();
        if (const int64_t bytes = block_scale_bytes(from.format, 1, from.cols)) {
            scales_of_halves = separated(from.block_scales, count, bytes);
            from.block_scales = scales_of_halves.data();
        }
    }
    if (from.float_scales) {
        auto& to = l.format == Format::fp8_block128 ? scales.tiles : scales.rows;
        to.insert(to.end(), from.float_scales, from.float_scales + float_scale_count(l.format, count, l.cols));
    }
    const int64_t codes = code_bytes(l.format, count, l.cols), blocks = block_scale_bytes(l.format, count, l.cols);
    const int64_t scales_at = round_up<int64_t>(codes, 256);
    if (scales_at + blocks > staging_bytes - 256) return fail("'{}.weight': {} columns are too many", l.name, l.cols);
    QuantView out = from;
    out.codes = reinterpret_cast<uint8_t*>(staging_);
    out.block_scales = blocks ? reinterpret_cast<uint8_t*>(staging_) + scales_at : nullptr;
    out.float_scales = nullptr;
    FixedBlocks fixed;
    if (records) {
        NIBBLE_TRY(fixed, FixedBlocks::make(from, l.name));
        if (!fixed.scales.empty()) from.codes = fixed.codes.data(), from.block_scales = fixed.scales.data();
    }
    NIBBLE_CHECK(copy_to_device(staging_, host_bytes(from.codes), codes, *stream_));
    if (blocks) NIBBLE_CHECK(copy_to_device(staging_ + scales_at, host_bytes(from.block_scales), blocks, *stream_));
    return out;
}

void RoundedWeights::add(const RoundedWeights& other) {
    if (values == 0) stored = other.stored;
    matrices += other.matrices;
    values += other.values;
}

std::string RoundedWeights::text() const {
    if (values == 0) return {};
    return fmt::format("--device cuda multiplies BF16: {} values in {} {} {} were rounded to it", values, matrices,
                       dtype_name(stored), matrices == 1 ? "matrix" : "matrices");
}

Status DeviceWeights::narrow(std::span<const float> wide, std::span<uint16_t> out, size_t tensor) {
    const CheckpointTensor& t = checkpoint_->tensors()[tensor];
    int64_t changed = 0;
    for (size_t i = 0; i < wide.size(); ++i) {
        out[i] = bf16_from_float(wide[i]);
        const float now = bf16_to_float(out[i]);
        if (!is_finite(now))
            return fail(
                "'{}' is {} and holds {}: --device cuda multiplies BF16 weights, which cannot represent it; use "
                "--device cpu",
                t.name, t.stored_type, wide[i]);
        changed += now != wide[i];
    }
    if (changed == 0) return Ok{};
    rounded_.add({last_rounded_ != tensor, changed, t.dtype});
    last_rounded_ = tensor;
    return Ok{};
}

// Rows of an unquantized weight in the staging buffer, as BF16: F32 and F16 values are rounded to it.
Result<MatrixView> DeviceWeights::stage_plain(size_t tensor, const Linear& l, int64_t row, int64_t count) {
    Matrix scratch;
    NIBBLE_TRY(MatrixView host, checkpoint_->read_plain(tensor, l.first_row + row, count, scratch));
    std::vector<std::byte> of_halves;
    if (l.alternating) {
        of_halves = separated(host.data, count, host.row_bytes());
        host.data = of_halves.data();
    }
    const MatrixView out{DType::bf16, count, l.cols, staging_};
    if (out.bytes() > staging_bytes - 256) return fail("'{}.weight': {} columns are too many", l.name, l.cols);
    if (host.dtype == DType::bf16) {
        NIBBLE_CHECK(copy_to_device(staging_, host.data, out.bytes(), *stream_));
        return out;
    }
    std::vector<float> wide(static_cast<size_t>(count * l.cols));
    std::vector<uint16_t> codes(wide.size());
    widen(host, wide.data());
    NIBBLE_CHECK(narrow(wide, codes, tensor));
    NIBBLE_CHECK(copy_to_device(staging_, host_bytes(codes.data()), out.bytes(), *stream_));
    return out;
}

void DeviceWeights::merge(Scales& all, Scales part, int64_t rows) {
    if (part.rows.empty() && part.tiles.empty()) part.rows.assign(static_cast<size_t>(rows), part.one);
    all.rows.insert(all.rows.end(), part.rows.begin(), part.rows.end());
    all.tiles.insert(all.tiles.end(), part.tiles.begin(), part.tiles.end());
}

namespace {

QuantView rows_of(QuantView view, int64_t first, int64_t count) {
    view.codes += code_bytes(view.format, first, view.cols);
    view.block_scales += block_scale_bytes(view.format, first, view.cols);
    view.rows = count;
    return view;
}

}  // namespace

Status DeviceWeights::prepack_by_turns(const QuantView& view, int64_t first, const cuda::PackedSpan& to) {
    const int64_t half = to.rows / 2, gates = std::clamp<int64_t>(half - first, 0, view.rows);
    if (gates > 0) NIBBLE_CHECK(cuda::prepack(rows_of(view, 0, gates), 2 * first, to, refused_, *stream_, {16, 32}));
    if (gates == view.rows) return Ok{};
    return cuda::prepack(rows_of(view, gates, view.rows - gates), 2 * (first + gates - half) + 16, to, refused_,
                         *stream_, {16, 32});
}

Result<DeviceLinear> DeviceWeights::product(std::span<const Linear> parts, std::span<const float> bias,
                                            bool interleaved_gate) {
    const Linear& first = parts[0];
    NIBBLE_CHECK(check_inputs(first));
    DeviceLinear out{.name = first.name,
                     .cols = first.cols,
                     .format = first.format,
                     .activation = first.activation,
                     .input_scale = first.input_scale,
                     .w4a16 = runs_on_records(first)};
    for (const Linear& part : parts) {
        out.names.push_back(part.name);
        out.rows += part.rows;
    }
    if (replace_) out.other = replace_(first.name);
    if (out.other) {
        NIBBLE_TRY(out.operand.bias, vector(bias));
        return out;
    }
    // One part has the rows of gate, then those of up.
    const bool halves = parts.size() == 1 || (parts.size() == 2 && parts[0].rows == parts[1].rows);
    out.interleaved_gate = interleaved_gate && out.w4a16 && halves && out.rows % 32 == 0;
    const bool tiles = first.format == Format::fp8_block128;
    const bool row_scales = !tiles && first.format != Format::none;
    out.operand.codes = runs_on_codes(first);
    const int64_t size = out.w4a16           ? cuda::packed_bytes(out.rows, out.cols)
                         : out.operand.codes ? cuda::codes_bytes(out.rows, out.cols)
                                             : cuda::operand_bytes(out.rows, out.cols);
    NIBBLE_TRY(std::byte * memory, allocate(size));
    const std::vector<float> turned = out.interleaved_gate ? by_sixteen(bias) : std::vector<float>();
    NIBBLE_TRY(const float* device_bias, vector(out.interleaved_gate ? std::span<const float>(turned) : bias));
    Scales all;
    if (mode() == Mode::plan) {
        // Planning assumes the number of scales that loading will find.
        if (row_scales) all.rows.resize(static_cast<size_t>(out.rows));
        if (tiles) all.tiles.resize(static_cast<size_t>((out.rows + 127) / 128 * ((out.cols + 127) / 128)));
    } else {
        if (!out.w4a16) NIBBLE_CHECK(fill_device(memory, 0, size, *stream_));
        int64_t row = 0;
        for (const Linear& part : parts) {
            Scales scales;
            if (out.w4a16) {
                const cuda::PackedSpan span{out.rows, out.cols, memory, first.format};
                NIBBLE_CHECK(upload(part, true, scales, [&](const auto& view, int64_t at) -> Status {
                    if constexpr (std::is_same_v<std::decay_t<decltype(view)>, QuantView>)
                        return out.interleaved_gate ? prepack_by_turns(view, row + at, span)
                                                    : cuda::prepack(view, row + at, span, refused_, *stream_);
                    else
                        return fail("'{}.weight' is not quantized", part.name);
                }));
            } else {
                NIBBLE_CHECK(upload(part, false, scales, [&](const auto& view, int64_t at) -> Status {
                    if constexpr (std::is_same_v<std::decay_t<decltype(view)>, QuantView>)
                        if (out.operand.codes) return cuda::make_codes(view, out.rows, row + at, memory, *stream_);
                    return cuda::make_operand(view, out.rows, row + at, memory, *stream_);
                }));
            }
            row += part.rows;
            if (first.format != Format::none) merge(all, std::move(scales), part.rows);
        }
    }
    if (out.interleaved_gate) all.rows = by_sixteen(all.rows);
    NIBBLE_TRY(const float* device_rows, vector(all.rows));
    NIBBLE_TRY(const float* device_tiles, vector(all.tiles));
    if (out.w4a16) {
        if (std::ranges::find(w4a16_, std::pair(out.rows, out.cols)) == w4a16_.end())
            w4a16_.emplace_back(out.rows, out.cols);
        out.records = {out.rows, out.cols, memory, first.format};
        out.factors = {.row_scales = device_rows, .bias = device_bias};
    } else {
        out.operand = {.rows = out.rows,
                       .cols = out.cols,
                       .tiles = memory,
                       .codes = out.operand.codes,
                       .row_scales = device_rows,
                       .tile_scales = device_tiles,
                       .bias = device_bias};
    }
    return out;
}

Result<DeviceLinear> DeviceWeights::linear(const Linear& linear) {
    NIBBLE_TRY(DeviceLinear one, product({&linear, 1}, linear.bias));
    return cover_ ? cover_->over(std::vector{std::move(one)}) : std::move(one);
}

Result<DeviceStack> DeviceWeights::stack(const LinearStack& stack, bool gated) {
    DeviceStack out{.rows = stack.rows(), .cols = stack.parts[0].cols};
    if (stack.one && stackable(stack.parts)) {
        NIBBLE_TRY(DeviceLinear all, product(stack.parts, stack.bias, gated && interleaves_));
        out.parts.push_back(std::move(all));
    } else {
        for (const Linear& part : stack.parts) {
            NIBBLE_TRY(DeviceLinear one, product({&part, 1}, part.bias));
            out.parts.push_back(std::move(one));
        }
    }
    if (cover_) out.parts = {cover_->over(std::move(out.parts))};
    return out;
}

Result<Workspace*> DeviceWeights::host() const {
    if (!host_) return fail("no workspace on the host to read embeddings with");
    return host_;
}

Result<const std::byte*> DeviceWeights::embedding(const Embedding& embedding, int64_t vocab, int64_t width,
                                                  Workspace& work) {
    NIBBLE_TRY(std::byte * memory, allocate(vocab * width * 2));
    if (mode() == Mode::plan) return memory;
    const int64_t step = std::max<int64_t>(1, (int64_t{16} << 20) / width);
    std::vector<float> rows;
    std::vector<uint16_t> narrow;
    std::vector<int32_t> tokens;
    for (int64_t row = 0; row < vocab; row += step) {
        const int64_t count = std::min(step, vocab - row), n = count * width;
        tokens.clear();
        for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(row + i));
        rows.resize(static_cast<size_t>(n)), narrow.resize(rows.size());
        NIBBLE_CHECK(embedding.forward(tokens, rows.data(), work));
        for (size_t i = 0; i < rows.size(); ++i) narrow[i] = bf16_from_float(rows[i]);
        NIBBLE_CHECK(copy_to_device(memory + row * width * 2, host_bytes(narrow.data()), 2 * n, *stream_));
    }
    return memory;
}

}  // namespace nibble
