#include "model/weight_source.h"

#include "checkpoint/text_config.h"
#include "formats/fp8.h"
#include "formats/minifloat.h"
#include "kernels/packed_memory.h"
#include "kernels/quantize.h"
#include "model/alternating_rows.h"
#include "model/cpu/widen.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
    std::string text;
    for (const int64_t n : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", n);
    return "[" + text + "]";
}

bool is_weight_dtype(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

// Tensors of published checkpoints that the language model's forward pass does not read.
bool is_harmless(std::string_view name) {
    for (const std::string_view part :
         {"rotary_emb.inv_freq", ".k_scale", ".v_scale", ".q_proj.q_scale", ".attn.masked_bias"})
        if (name.ends_with(part)) return true;
    for (const std::string_view tower :
         {"vision_model.", "vit_large_projector.", "vision_tower.", "multi_modal_projector.", "patch_merge_mlp.",
          "model.vision_tower.", "model.multi_modal_projector.", "model.visual.", "visual."})
        if (name.starts_with(tower)) return true;
    return false;
}

// Appends the rows of `view` from `first` on, so that no part begins inside a tile of scales unless it ends there too.
void add_rows(QuantView view, int64_t first, std::vector<QuantView>& views) {
    if (first == 0) {
        views.push_back(view);
        return;
    }
    QuantView head = view;
    head.rows = std::min<int64_t>(fp8_tile, view.rows) - first;
    head.codes += first * code_bytes(view.format, 1, view.cols);
    views.push_back(head);
    if (view.rows <= fp8_tile) return;
    view.rows -= fp8_tile;
    view.codes += fp8_tile * code_bytes(view.format, 1, view.cols);
    view.float_scales += float_scale_count(view.format, fp8_tile, view.cols);
    views.push_back(view);
}

}  // namespace

WeightSource::WeightSource(const Checkpoint& checkpoint, const WeightOptions& options, ThreadPool& pool, Mode mode)
    : checkpoint_(&checkpoint),
      options_(options),
      pool_(&pool),
      mode_(mode),
      used_(checkpoint.tensors().size(), false) {
    const auto tensors = checkpoint.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].name, i);
}

Status check_loading_stop(const std::atomic<bool>* stop_requested) {
    if (!stop_requested || !stop_requested->load(std::memory_order_relaxed)) return Ok{};
    return fail(ErrorKind::cancelled, "stopped on request while the weights were loaded");
}

Result<size_t> WeightSource::find(const std::string& tensor) {
    NIBBLE_CHECK(check_loading_stop(options_.stop_requested));
    const auto at = index_.find(tensor);
    if (at == index_.end()) return fail("tensor '{}' is missing: config.json says the model has it", tensor);
    const size_t index = at->second;
    used_[index] = true;
    const CheckpointTensor& t = checkpoint_->tensors()[index];
    if (!t.whole.empty()) return fail("tensor '{}': {}", tensor, t.whole);
    if (!t.quantized() && !is_weight_dtype(t.dtype))
        return fail("tensor '{}' is {}: the engine reads BF16, F16, F32 and quantized weights", tensor,
                    dtype_name(t.dtype));
    return index;
}

Result<size_t> WeightSource::find(const std::string& tensor, int64_t rows, int64_t cols) {
    NIBBLE_TRY(const size_t index, find(tensor));
    const CheckpointTensor& t = checkpoint_->tensors()[index];
    if (t.shape.size() != 2 || t.shape[0] != rows || t.shape[1] != cols)
        return fail("tensor '{}' has shape {}, config.json says [{}, {}]", tensor, shape_text(t.shape), rows, cols);
    return index;
}

Result<std::vector<float>> WeightSource::vector(const std::string& tensor, int64_t count) {
    NIBBLE_TRY(const size_t index, find(tensor));
    const CheckpointTensor& t = checkpoint_->tensors()[index];
    if (t.quantized()) return fail("tensor '{}' is quantized: a vector of plain numbers is needed", tensor);
    if (t.rows() * t.cols() != count)
        return fail("tensor '{}' has shape {}, config.json says {} numbers", tensor, shape_text(t.shape), count);
    std::vector<float> out(static_cast<size_t>(count));
    if (mode_ == Mode::check) return out;
    Matrix scratch;
    NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(index, 0, t.rows(), scratch));
    widen(view, out.data());
    for (const float x : out)
        if (!is_finite(x)) return fail("tensor '{}' holds {}", tensor, x);
    return out;
}

Result<std::vector<float>> WeightSource::own_vector(const std::string& tensor, int64_t count) {
    if (!share() || !share()->divides(tensor)) return vector(tensor, count);
    NIBBLE_TRY(const size_t index, find(tensor));
    const int64_t width = count / std::max<int64_t>(checkpoint_->tensors()[index].rows(), 1);
    NIBBLE_TRY(const std::vector<float> all, vector(tensor, count));
    std::vector<float> own;
    for (const RowRange& range : share()->rows(tensor))
        own.insert(own.end(), all.begin() + range.begin * width, all.begin() + range.end * width);
    return own;
}

Result<std::vector<float>> WeightSource::norm(const ModelConfig& model, const std::string& tensor, int64_t count) {
    NIBBLE_TRY(std::vector<float> w, vector(tensor, count));
    if (model.norm_plus_one)
        for (float& x : w) x += 1.0f;
    return w;
}

Result<std::vector<float>> WeightSource::matrix(const std::string& tensor, int64_t rows, int64_t cols) {
    NIBBLE_TRY(const size_t index, find(tensor, rows, cols));
    std::vector<float> out;
    if (mode_ == Mode::check) return out;
    out.resize(static_cast<size_t>(rows * cols));
    if (checkpoint_->tensors()[index].quantized()) {
        QuantMatrix scratch;
        NIBBLE_TRY(const QuantView view, checkpoint_->read_quant(index, 0, rows, scratch));
        NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels());
        kernels->decode(view, out.data());
    } else {
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(index, 0, rows, scratch));
        widen(view, out.data());
    }
    return out;
}

Result<std::vector<int32_t>> WeightSource::integers(const std::string& tensor, int64_t rows, int64_t cols,
                                                    int64_t bound) {
    const auto at = index_.find(tensor);
    if (at == index_.end()) return fail("tensor '{}' is missing: config.json says the model has it", tensor);
    used_[at->second] = true;
    const CheckpointTensor& t = checkpoint_->tensors()[at->second];
    if (t.dtype != DType::i64 || t.shape != std::vector<int64_t>{rows, cols})
        return fail("tensor '{}' is {} {}, config.json says I64 [{}, {}]", tensor, dtype_name(t.dtype),
                    shape_text(t.shape), rows, cols);
    std::vector<int32_t> out(static_cast<size_t>(rows * cols));
    if (mode_ == Mode::check) return out;
    Matrix scratch;
    NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(at->second, 0, rows, scratch));
    for (size_t i = 0; i < out.size(); ++i) {
        int64_t value = 0;
        std::memcpy(&value, view.data + 8 * i, 8);
        if (value < 0 || value >= bound)
            return fail("tensor '{}' holds {}, expected 0 to {}", tensor, value, bound - 1);
        out[i] = static_cast<int32_t>(value);
    }
    return out;
}

// Returns a linear with name, sizes, bias and input quantization, but without its weight.
Result<Linear> WeightSource::describe(const std::string& module, int64_t rows, int64_t cols, bool bias) {
    NIBBLE_TRY(const size_t index, find(module + ".weight", rows, cols));
    NIBBLE_TRY(Linear linear, describe_weight(module, index, rows, cols));
    if (bias) {
        NIBBLE_TRY(linear.bias, vector(module + ".bias", rows));
    }
    return linear;
}

Result<Linear> WeightSource::describe_weight(const std::string& module, size_t tensor, int64_t rows, int64_t cols) {
    const CheckpointTensor& t = checkpoint_->tensors()[tensor];
    Linear linear;
    linear.name = module;
    linear.rows = rows, linear.cols = cols;
    linear.format = t.format;
    if (!options_.quantize_activations || t.activation == ActivationFormat::none) return linear;
    linear.activation = t.activation;
    if (stores_input_scale(t.activation)) {
        if (!t.input_scale)
            return fail("'{}' has {} inputs but no input_scale (calibrate, or pass --weights-only)", module,
                        activation_name(t.activation));
        if (!(*t.input_scale > 0) || !is_finite(*t.input_scale))
            return fail("'{}.input_scale' is {}", module, *t.input_scale);
        linear.input_scale = *t.input_scale;
    }
    return linear;
}

Result<PackedMatrix> WeightSource::pack(std::span<const PackedRows> parts) {
    const auto all = checkpoint_->tensors();
    size_t pieces = 0;
    for (const PackedRows& part : parts) pieces += part.ranges.size();
    if (!all[parts[0].tensor].quantized()) {
        std::vector<Matrix> scratch(pieces);
        std::vector<MatrixView> views;
        for (const PackedRows& part : parts)
            for (const RowRange& range : part.ranges) {
                NIBBLE_TRY(
                    const MatrixView view,
                    checkpoint_->read_plain(part.tensor, range.begin, range.end - range.begin, scratch[views.size()]));
                views.push_back(view);
            }
        return prepack_stacked(views, *pool_, memory_);
    }
    std::vector<QuantMatrix> scratch(pieces);
    std::vector<QuantView> views;
    size_t piece = 0;
    for (const PackedRows& part : parts)
        for (const RowRange& range : part.ranges) {
            const int64_t skipped = all[part.tensor].format == Format::fp8_block128 ? range.begin % fp8_tile : 0;
            NIBBLE_TRY(const QuantView view,
                       checkpoint_->read_quant(part.tensor, range.begin - skipped, range.end - range.begin + skipped,
                                               scratch[piece++]));
            add_rows(view, skipped, views);
        }
    return prepack_stacked(views, *pool_, memory_);
}

std::vector<RowRange> WeightSource::take_share(Linear& linear, Outputs outputs) const {
    const std::string tensor = linear.name + ".weight";
    if (!share() || !share()->divides(tensor)) return {{0, linear.rows}};
    const std::vector<RowRange> ranges = share()->rows(tensor);
    if (share()->whole_or_none(tensor)) return ranges;
    std::vector<float> bias;
    int64_t own = 0;
    for (const RowRange& range : ranges) {
        own += range.end - range.begin;
        if (!linear.bias.empty())
            bias.insert(bias.end(), linear.bias.begin() + range.begin, linear.bias.begin() + range.end);
    }
    linear.bias = std::move(bias);
    if (outputs == Outputs::own)
        linear.rows = own;
    else
        linear.divided = share()->columns({&tensor, 1});
    return ranges;
}

Result<Linear> WeightSource::linear(const std::string& module, int64_t rows, int64_t cols, bool bias, Outputs outputs) {
    NIBBLE_TRY(Linear linear, describe(module, rows, cols, bias));
    const PackedRows part{index_.at(module + ".weight"), take_share(linear, outputs)};
    if (mode_ != Mode::load || part.ranges.empty()) return linear;
    NIBBLE_TRY(linear.weight, pack({&part, 1}).within(module));
    checkpoint_->done_with(part.tensor, 0, rows);
    return linear;
}

Result<Linear> WeightSource::linear_rows(const std::string& module, int64_t rows, int64_t cols, int64_t first,
                                         int64_t count) {
    NIBBLE_TRY(Linear linear, describe(module, rows, cols, false));
    linear.rows = count, linear.first_row = first;
    if (mode_ != Mode::load) return linear;
    const size_t index = index_.at(module + ".weight");
    if (checkpoint_->tensors()[index].quantized()) {
        QuantMatrix scratch;
        NIBBLE_TRY(const QuantView view, checkpoint_->read_quant(index, first, count, scratch).within(module));
        NIBBLE_TRY(linear.weight, prepack_stacked({&view, 1}, *pool_, memory_).within(module));
    } else {
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(index, first, count, scratch));
        NIBBLE_TRY(linear.weight, prepack_stacked({&view, 1}, *pool_, memory_).within(module));
    }
    return linear;
}

Result<std::vector<float>> WeightSource::expert_bias(const Slice& slice, int64_t rows) {
    const std::string name = slice.module + "_bias";
    NIBBLE_TRY(const size_t index, find(name));
    const CheckpointTensor& t = checkpoint_->tensors()[index];
    if (t.quantized() || t.shape != std::vector<int64_t>{slice.experts, rows})
        return fail("tensor '{}' has shape {}, config.json says [{}, {}]", name, shape_text(t.shape), slice.experts,
                    rows);
    std::vector<float> bias(static_cast<size_t>(rows));
    if (mode_ == Mode::check) return bias;
    Matrix scratch;
    NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(index, slice.expert, 1, scratch));
    widen(view, bias.data());
    for (const float x : bias)
        if (!is_finite(x)) return fail("tensor '{}' holds {}", name, x);
    return bias;
}

bool WeightSource::owns_expert(const Slice& slice) const {
    if (!share()) return true;
    const RowRange own = share()->experts(slice.experts, share()->rank());
    return own.begin <= slice.expert && slice.expert < own.end;
}

Result<Linear> WeightSource::expert(const Slice& slice, int64_t rows, int64_t cols, bool bias) {
    const std::string name = has(slice.module) ? slice.module : slice.module + ".weight";
    NIBBLE_TRY(const size_t index, find(name, slice.experts * rows, cols));
    if (checkpoint_->tensors()[index].experts != slice.experts)
        return fail("tensor '{}' is not a stack of {} experts, which config.json describes", name, slice.experts);
    NIBBLE_TRY(Linear linear, describe_weight(slice.module, index, rows, cols));
    if (bias) {
        NIBBLE_TRY(linear.bias, expert_bias(slice, rows));
    }
    if (slice.alternating && bias) linear.bias = separated(linear.bias.data(), rows, 1);
    const int64_t begin = slice.expert * rows;
    linear.first_row = begin, linear.alternating = slice.alternating;
    if (slice.alternating && linear.format == Format::fp8_block128)
        return fail("'{}' alternates rows of gate and up, which share scales of 128 rows in {}", name,
                    format_name(linear.format));
    if (mode_ != Mode::load || !owns_expert(slice)) return linear;
    if (checkpoint_->tensors()[index].quantized()) {
        QuantMatrix scratch;
        std::vector<uint8_t> codes, scales;
        std::vector<float> row_scales;
        NIBBLE_TRY(QuantView view, checkpoint_->read_quant(index, begin, rows, scratch));
        if (slice.alternating) {
            codes = separated(view.codes, rows, code_bytes(view.format, 1, cols));
            view.codes = codes.data();
            if (view.block_scales) {
                scales = separated(view.block_scales, rows, block_scale_bytes(view.format, 1, cols));
                view.block_scales = scales.data();
            }
            if (const int64_t count = float_scale_count(view.format, rows, cols)) {
                row_scales = separated(view.float_scales, rows, count / rows);
                view.float_scales = row_scales.data();
            }
        }
        NIBBLE_TRY(linear.weight, prepack_stacked({&view, 1}, *pool_, memory_).within(name));
    } else {
        Matrix scratch;
        std::vector<std::byte> values;
        NIBBLE_TRY(MatrixView view, checkpoint_->read_plain(index, begin, rows, scratch));
        if (slice.alternating) {
            values = separated(view.data, rows, view.row_bytes());
            view.data = values.data();
        }
        NIBBLE_TRY(linear.weight, prepack_stacked({&view, 1}, *pool_, memory_).within(name));
    }
    checkpoint_->done_with(index, begin, rows);
    return linear;
}

Result<LinearStack> WeightSource::stack(std::span<const Part> parts, int64_t cols, bool bias, Outputs outputs) {
    LinearStack stack;
    std::vector<PackedRows> packed;
    std::vector<std::string> names;
    bool divided = false;
    for (const Part& part : parts) {
        NIBBLE_TRY(Linear linear, describe(part.module, part.rows, cols, bias));
        names.push_back(part.module + ".weight");
        packed.push_back({index_.at(names.back()), take_share(linear, outputs)});
        divided |= static_cast<bool>(linear.divided);
        stack.parts.push_back(std::move(linear));
    }
    if (divided) stack.divided = share()->columns(names);
    const auto all = checkpoint_->tensors();
    stack.one = std::ranges::all_of(stack.parts, [&](const Linear& l) {
        const Linear& first = stack.parts[0];
        return l.format == first.format && l.activation == first.activation && l.input_scale == first.input_scale;
    });
    stack.one = stack.one && std::ranges::all_of(packed, [&](const PackedRows& part) {
                    return all[part.tensor].quantized() || all[part.tensor].dtype == all[packed[0].tensor].dtype;
                });
    if (stack.one && bias)
        for (const Linear& part : stack.parts) stack.bias.insert(stack.bias.end(), part.bias.begin(), part.bias.end());
    if (mode_ != Mode::load || packed[0].ranges.empty()) return stack;
    if (stack.one) {
        NIBBLE_TRY(stack.weight, pack(packed).within(parts[0].module));
    } else {
        for (size_t i = 0; i < parts.size(); ++i) {
            NIBBLE_TRY(stack.parts[i].weight, pack({&packed[i], 1}).within(parts[i].module));
        }
    }
    for (size_t i = 0; i < parts.size(); ++i) checkpoint_->done_with(packed[i].tensor, 0, parts[i].rows);
    return stack;
}

Result<float> WeightSource::scalar(const std::string& tensor) {
    NIBBLE_TRY(const auto value, vector(tensor, 1));
    return value[0];
}

Result<KvShape> WeightSource::kv_shape(const std::string& prefix, int heads, int k_dim, int v_dim) {
    KvShape shape{heads, k_dim, v_dim, options_.compute == Compute::f32 ? KvType::f32 : KvType::bf16};
    const KvFormat format = options_.kv.value_or(checkpoint_->kv());
    if (format == KvFormat::fp8 || format == KvFormat::fp8_cast) shape.type = KvType::fp8;
    if (format == KvFormat::fp8_page) shape.type = KvType::fp8_page;
    if (format == KvFormat::nvfp4 || format == KvFormat::nvfp4_cast) shape.type = KvType::nvfp4;
    if (format == KvFormat::fp8 || format == KvFormat::nvfp4) {
        const std::string k = prefix + ".k_proj.k_scale", v = prefix + ".v_proj.v_scale";
        // Model Optimizer's "FP8" without scales is a cast: scale 1. Prediction layers never have scales, because they
        // are copied unquantized.
        if (has(k) && has(v)) {
            NIBBLE_TRY(shape.k_scale, scalar(k));
            NIBBLE_TRY(shape.v_scale, scalar(v));
            if (mode_ == Mode::check) shape.k_scale = shape.v_scale = 1.0f;
            const std::string q = prefix + ".q_proj.q_scale";
            if (format == KvFormat::fp8 && has(q)) {
                NIBBLE_TRY(shape.q_scale, scalar(q));
            }
        } else if ((options_.kv && !PredictionLayers(checkpoint_->config()).contains(k)) || has(k) || has(v)) {
            return fail("the {} KV cache needs '{}' and '{}' (use {}_cast for a scale of 1)", kv_name(format), k, v,
                        kv_name(format));
        }
    }
    NIBBLE_CHECK(nibble::check(shape).within(prefix));
    return shape;
}

Status WeightSource::all_used() const {
    const PredictionLayers prediction(checkpoint_->config());
    const auto tensors = checkpoint_->tensors();
    for (size_t i = 0; i < tensors.size(); ++i)
        if (!used_[i] && !is_harmless(tensors[i].name) && !prediction.announces(tensors[i].name))
            return fail("tensor '{}' belongs to no module that config.json describes: its effect would be lost",
                        tensors[i].name);
    return Ok{};
}

}  // namespace nibble
