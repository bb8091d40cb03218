// Quantized experts that are stacked in one tensor per projection and layer. A stack that is one matrix (GPT-OSS)
// keeps its codes; other stacks are decoded to BF16 when they are read.
//
//   GPT-OSS            P.gate_up_proj_blocks [E, out, in/32, 16], P.gate_up_proj_scales [E, out, in/32]
//                      -> P.gate_up_proj [E, in, out], the layout of transformers
//   Model Optimizer    P.gate_up_proj U8 [E, in/2, out], P.gate_up_proj_weight_scale E4M3 [E, in/16, out],
//                      P.gate_up_proj_weight_scale_2 [] or [E]; FP8: P.gate_up_proj [E, in, out] under a single scale
//   transformers       P.gate_up_proj E4M3 [E, out, in], P.gate_up_proj_scale_inv [E, out/128, in/128]
//
// with P = "model.layers.0.mlp.experts", and every name with or without ".weight".
#include "checkpoint/hf_catalog.h"
#include "checkpoint/scale_values.h"
#include "formats/fp8.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 6> stack_scales{"_weight_scale", "_weight_scale_inv", "_scale_inv",
                                                       ".weight_scale", ".weight_scale_inv", "_scale"};
constexpr std::array<std::string_view, 2> stack_factors{"_weight_scale_2", ".weight_scale_2"};
constexpr std::array<std::string_view, 4> stack_inputs{"_input_scale", ".input_scale", "_activation_scale",
                                                       ".activation_scale"};

const ModelTensor* find_any(const ModelFiles& files, std::string_view stem, std::span<const std::string_view> endings) {
    for (std::string_view ending : endings)
        if (const ModelTensor* t = files.find(fmt::format("{}{}", stem, ending))) return t;
    return nullptr;
}

// Returns how many adjacent elements share each of `scales` scales of a dimension; 0: the sizes do not match. 128 is
// tested first, because the last tile may be partial.
int64_t block_of(int64_t size, int64_t scales) {
    if (scales == 1) return size;
    if (scales == ceil_div<int64_t>(size, fp8_tile)) return fp8_tile;
    return scales > 0 && size % scales == 0 ? size / scales : 0;
}

// Sets the grid of scales of codes [experts, rows, cols]. Returns false if the shape does not match.
bool set_scales(const TensorRecord& scales, CodeGrid& grid) {
    std::vector<int64_t> shape = scales.shape;
    grid.scales = scales.data;
    grid.scale_dtype = scales.dtype;
    grid.scales_per_expert = !shape.empty() && shape[0] == grid.experts && shape != std::vector<int64_t>{1};
    if (shape.size() <= 1) {
        if (!grid.scales_per_expert && !(shape.empty() || shape[0] == 1)) return false;
        shape = {1, 1, 1};
    } else if (shape.size() == 2) {  // one per output
        if (!grid.scales_per_expert) return false;
        if (shape[1] == 1 || shape[1] == grid.rows)
            shape = {shape[0], shape[1], 1};
        else
            shape = {shape[0], 1, shape[1]};
    } else if (shape.size() != 3 || !grid.scales_per_expert) {
        return false;
    }
    grid.scale_rows = shape[1];
    grid.scale_cols = shape[2];
    grid.block_rows = block_of(grid.rows, grid.scale_rows);
    grid.block_cols = block_of(grid.cols, grid.scale_cols);
    return grid.block_rows > 0 && grid.block_cols > 0;
}

// Sets a grid of 4-bit codes, which are paired along the inputs, as are the blocks of their scales (16 or 32 codes
// each).
bool set_pairs(const std::vector<int64_t>& stored, const TensorRecord& scales, CodeGrid& grid) {
    if (scales.shape.size() != 3) return false;
    const auto blocks = [](int64_t bytes, int64_t count) { return count * 8 == bytes || count * 16 == bytes; };
    const bool down = scales.shape[2] == stored[2] && blocks(stored[1], scales.shape[1]);
    if (down) grid.order = CodeOrder::pairs_down;
    if (!down && !(scales.shape[1] == stored[1] && blocks(stored[2], scales.shape[2]))) return false;
    grid.rows = down ? stored[1] * 2 : stored[1];
    grid.cols = down ? stored[2] : stored[2] * 2;
    return true;
}

}  // namespace

Status Catalog::take_blocks(const ModelTensor& blocks, std::string_view stem) {
    const TensorRecord& codes = *blocks.record;
    const auto misfit = [&](std::string_view what) {
        return fail("{}: {}: {} {}: {}", file_of(blocks), show_name(codes.name), dtype_name(codes.dtype),
                    shape_text(codes.shape), what);
    };
    const ModelTensor* scales = files_.find(fmt::format("{}_scales", stem));
    if (!scales) return misfit("its '..._scales' are missing");
    const auto& s = codes.shape;
    if (s.size() != 4 || s[3] != 16 || scales->record->shape != std::vector<int64_t>(s.begin(), s.end() - 1))
        return misfit(
            fmt::format("blocks are [experts, outputs, inputs / 32, 16], scales the first three; these are {}",
                        shape_text(scales->record->shape)));
    if (scales->record->dtype != DType::u8 && scales->record->dtype != DType::f8_e8m0)
        return misfit(fmt::format("scales are U8 or F8_E8M0, these are {}", dtype_name(scales->record->dtype)));
    const auto cols = checked_mul<int64_t>(s[2], 32);
    if (!cols || codes.data.empty()) return misfit("holds no codes");
    CodeGrid grid{.codes = codes.data,
                  .bits = 4,
                  .values = e2m1_code_values(),
                  .experts = s[0],
                  .rows = s[1],
                  .cols = *cols,
                  .row_bytes = s[2] * 16,
                  .scales = scales->record->data,
                  .scale_dtype = scales->record->dtype,
                  .scale_rows = s[1],
                  .scale_cols = s[2],
                  .block_cols = 32};
    taken_.insert({&blocks, scales});
    stacks_.push_back({.codes = &blocks,
                       .name = std::string(stem),
                       .stored_type = "MXFP4",
                       .grid = std::move(grid),
                       .stored_bytes = static_cast<int64_t>(codes.data.size() + scales->record->data.size()),
                       .turned = true,
                       .format = Format::mxfp4,
                       .block_scales = scales});
    return Ok{};
}

// Returns the format of a stack [experts, inputs, outputs] whose experts share the scales that a matrix has once; none:
// the stack has another layout.
Result<Format> Catalog::whole_format(const ModelTensor& scales, CodeStack& stack) const {
    const CodeGrid& g = stack.grid;
    if (g.factors.size() != 1) return Format::none;
    if (g.bits == 8) {
        if (g.scales_per_expert || g.scale_rows * g.scale_cols != 1) return Format::none;
        NIBBLE_TRY(stack.tensor_scale, read_scalar(scales, false));
        return Format::fp8;
    }
    if (g.order != CodeOrder::pairs_down || g.block_cols != 1 || g.scale_dtype != DType::f8_e4m3) return Format::none;
    stack.tensor_scale = g.factors[0];
    stack.block_scales = &scales;
    return g.block_rows == 16 ? Format::nvfp4 : g.block_rows == 32 ? Format::nvfp4_bs32 : Format::none;
}

Status Catalog::take_stack(const ModelTensor& codes, std::string_view stem, const ModelTensor& scales,
                           const StackInputs& activation) {
    const TensorRecord& c = *codes.record;
    const TensorRecord& s = *scales.record;
    const bool packed = c.dtype != DType::f8_e4m3;
    CodeGrid grid{.codes = c.data,
                  .bits = packed ? 4 : 8,
                  .values = packed ? e2m1_code_values() : e4m3_code_values(),
                  .experts = c.shape[0],
                  .rows = c.shape[1],
                  .cols = c.shape[2],
                  .row_bytes = c.shape[2]};
    const bool dtype = packed ? s.dtype == DType::f8_e4m3 || s.dtype == DType::f8_e8m0 || s.dtype == DType::u8
                              : is_scale_dtype(s.dtype);
    const bool sized = !c.data.empty() && c.shape[1] < INT64_MAX / 2 && c.shape[2] < INT64_MAX / 2;
    if (!dtype || !sized || (packed && !set_pairs(c.shape, s, grid)) || !set_scales(s, grid))
        return fail("{}: {}: {} {} are not scales that nibble supports for {} {}", file_of(scales), show_name(s.name),
                    dtype_name(s.dtype), shape_text(s.shape), dtype_name(c.dtype), shape_text(c.shape));
    int64_t bytes = static_cast<int64_t>(c.data.size() + s.data.size());
    if (const ModelTensor* factor = find_any(files_, stem, stack_factors)) {
        const TensorRecord& f = *factor->record;
        const int64_t count = checked_elements(f.shape).value_or(0);
        if ((count != 1 && count != grid.experts) || !is_scale_dtype(f.dtype) || f.dtype == DType::u8)
            return fail("{}: {}: {} {} must hold one scale, or one scale per expert", file_of(*factor),
                        show_name(f.name), dtype_name(f.dtype), shape_text(f.shape));
        grid.factors.resize(static_cast<size_t>(count));
        widen_scales(f.dtype, f.data.data(), grid.factors);
        if (count == 1) {
            NIBBLE_TRY(grid.factors[0], read_scalar(*factor, false));
        }
        bytes += static_cast<int64_t>(f.data.size());
        taken_.insert(factor);
    }
    CodeStack stack{.codes = &codes,
                    .name = c.name,
                    .stored_type = packed ? s.dtype == DType::f8_e4m3 ? "NVFP4" : "MXFP4" : "FP8",
                    .grid = std::move(grid),
                    .stored_bytes = bytes,
                    .input_scale = find_any(files_, stem, stack_inputs)};
    if (stack.input_scale) {
        const TensorRecord& i = *stack.input_scale->record;
        if (!is_scale_dtype(i.dtype) || checked_elements(i.shape) != 1)
            return fail("{}: {}: {} {} is not one scale", file_of(*stack.input_scale), show_name(i.name),
                        dtype_name(i.dtype), shape_text(i.shape));
        taken_.insert(stack.input_scale);
    }
    NIBBLE_TRY(stack.format, whole_format(scales, stack));
    if (activation) stack.activation = activation(stem, stack.format);
    taken_.insert({&codes, &scales});
    stacks_.push_back(std::move(stack));
    return Ok{};
}

Status Catalog::take_stacked_codes(const StackInputs& activation) {
    constexpr std::string_view blocks = "_blocks", weight = ".weight";
    for (const ModelTensor& t : files_.tensors()) {
        const std::string_view name = t.record->name;
        const DType dtype = t.record->dtype;
        if (dtype == DType::u8 && name.ends_with(blocks)) {
            NIBBLE_CHECK(take_blocks(t, name.substr(0, name.size() - blocks.size())));
            continue;
        }
        if (t.record->shape.size() != 3 || (dtype != DType::u8 && dtype != DType::i8 && dtype != DType::f8_e4m3))
            continue;
        const std::string_view stem = name.ends_with(weight) ? name.substr(0, name.size() - weight.size()) : name;
        if (const ModelTensor* scales = find_any(files_, stem, stack_scales))
            NIBBLE_CHECK(take_stack(t, stem, *scales, activation));
    }
    return Ok{};
}

}  // namespace nibble
