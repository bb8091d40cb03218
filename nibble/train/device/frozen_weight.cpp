#include "train/device/frozen_weight.h"

#include "base/checked.h"
#include "formats/minifloat.h"
#include "kernels/quantize_cuda.h"
#include "model/cpu/widen.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t widened_elements = int64_t{1} << 22;  // elements of an F16 or F32 matrix that are converted at a time

int64_t aligned_bytes(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
const std::byte* as_bytes_of(const void* p) { return static_cast<const std::byte*>(p); }

}  // namespace

FrozenWeight::Numbers FrozenWeight::numbers(const Checkpoint& checkpoint) {
    Numbers numbers;
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) numbers.emplace(checkpoint.tensors()[i].name, i);
    return numbers;
}

Result<FrozenWeight> FrozenWeight::plan(const Checkpoint& checkpoint, const Numbers& numbers,
                                        const std::vector<std::string>& tensors) {
    FrozenWeight w;
    for (const std::string& name : tensors) {
        const auto found = numbers.find(name);
        if (found == numbers.end()) return fail("'{}' is not in the checkpoint", name);
        const CheckpointTensor& t = checkpoint.tensors()[found->second];
        Part& part = w.parts_.emplace_back();
        part.tensor = found->second;
        part.stored = t.stored_type;
        part.codes = {.format = t.format, .rows = t.rows(), .cols = t.cols()};
        w.rows_ += t.rows(), w.cols_ = t.cols();
        w.decodes_ |= t.quantized();
    }
    return w;
}

int64_t FrozenWeight::bytes() const {
    int64_t sum = 0;
    if (!decodes_) return aligned_bytes(2 * rows_ * cols_);
    for (const Part& part : parts_) {
        const Format format = part.codes.format;
        const int64_t rows = part.codes.rows;
        if (format == Format::none)
            sum += aligned_bytes(2 * rows * cols_);
        else
            sum += aligned_bytes(code_bytes(format, rows, cols_)) +
                   aligned_bytes(block_scale_bytes(format, rows, cols_)) +
                   aligned_bytes(4 * float_scale_count(format, rows, cols_)) + aligned_bytes(4);
    }
    return sum;
}

Status FrozenWeight::load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream) {
    std::byte* together = nullptr;
    if (!decodes_) {
        NIBBLE_TRY(together, arena.allocate(2 * rows_ * cols_));
    }
    for (Part& part : parts_) {
        if (part.codes.format != Format::none) {
            NIBBLE_CHECK(load_codes(part, checkpoint, arena, stream));
            continue;
        }
        const int64_t size = 2 * part.codes.rows * cols_;
        part.plain = together;
        if (together) {
            together += size;
        } else {
            NIBBLE_TRY(part.plain, arena.allocate(size));
        }
        NIBBLE_CHECK(load_plain(part, checkpoint, stream));
    }
    return Ok{};
}

Status FrozenWeight::load_codes(Part& part, const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream) {
    const Format format = part.codes.format;
    const int64_t rows = part.codes.rows;
    QuantMatrix scratch;
    NIBBLE_TRY(const QuantView from, checkpoint.read_quant(part.tensor, 0, rows, scratch));
    const auto copy = [&](const void* data, int64_t bytes) -> Result<std::byte*> {
        NIBBLE_TRY(std::byte * to, arena.allocate(bytes));
        NIBBLE_CHECK(copy_to_device(to, as_bytes_of(data), bytes, stream));
        return to;
    };
    part.codes.tensor_scale = from.tensor_scale;
    NIBBLE_TRY(const std::byte* codes, copy(from.codes, code_bytes(format, rows, cols_)));
    NIBBLE_TRY(const std::byte* blocks, copy(from.block_scales, block_scale_bytes(format, rows, cols_)));
    NIBBLE_TRY(const std::byte* floats, copy(from.float_scales, 4 * float_scale_count(format, rows, cols_)));
    NIBBLE_TRY(const std::byte* scale, copy(&part.codes.tensor_scale, 4));
    part.codes.codes = reinterpret_cast<const uint8_t*>(codes);
    if (from.block_scales) part.codes.block_scales = reinterpret_cast<const uint8_t*>(blocks);
    if (from.float_scales) part.codes.float_scales = reinterpret_cast<const float*>(floats);
    part.tensor_scale = reinterpret_cast<const float*>(scale);
    NIBBLE_CHECK(stream.synchronize());  // `scratch` is released on return
    checkpoint.done_with(part.tensor, 0, rows);
    return Ok{};
}

Status FrozenWeight::load_plain(const Part& part, const Checkpoint& checkpoint, const Stream& stream) const {
    const int64_t rows = part.codes.rows, step = std::max<int64_t>(1, widened_elements / cols_);
    std::vector<float> wide;
    std::vector<uint16_t> narrow;
    for (int64_t row = 0; row < rows; row += step) {
        const int64_t count = std::min(step, rows - row);
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint.read_plain(part.tensor, row, count, scratch));
        const std::byte* values = view.data;
        if (view.dtype != DType::bf16) {
            wide.resize(static_cast<size_t>(count * cols_)), narrow.resize(wide.size());
            widen(view, wide.data());
            std::ranges::transform(wide, narrow.begin(), [](float x) { return bf16_from_float(x); });
            values = as_bytes_of(narrow.data());
        }
        NIBBLE_CHECK(copy_to_device(part.plain + 2 * row * cols_, values, 2 * count * cols_, stream));
        NIBBLE_CHECK(stream.synchronize());  // the source buffer is reused
        checkpoint.done_with(part.tensor, row, count);
    }
    return Ok{};
}

Result<const std::byte*> FrozenWeight::values(DeviceStep& step, size_t first, size_t count) const {
    if (!decodes_) return parts_[first].plain;
    const std::span<const Part> some = std::span(parts_).subspan(first, count);
    int64_t rows = 0;
    for (const Part& part : some) rows += part.codes.rows;
    NIBBLE_TRY(std::byte * all, step.scratch.allocate(2 * rows * cols_));
    std::byte* to = all;
    for (const Part& part : some) {
        const int64_t size = 2 * part.codes.rows * cols_;
        NIBBLE_CHECK(part.plain ? copy_on_device(to, part.plain, size, step.stream)
                                : cuda::decode(part.codes, part.tensor_scale, DType::bf16, to, step.stream));
        to += size;
    }
    return all;
}

}  // namespace nibble
