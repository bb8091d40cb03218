#include "checkpoint/gguf_source.h"

#include "formats/ggml_dequantize.h"
#include "formats/minifloat.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace nibble {
namespace {

constexpr std::string_view weight_suffix = ".weight", scale_suffix = ".scale", input_scale_suffix = ".input_scale";

std::string gguf_shape_text(std::span<const int64_t> shape) {
    std::string out = "[";
    for (const int64_t d : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", d);
    return out + "]";
}

Error wrong_shape(const GgufTensor& tensor, std::string_view expected) {
    return fail("tensor {} has shape {}, expected {}", gguf_shown(tensor.name), gguf_shape_text(tensor.shape),
                expected);
}

// Returns "X" for "X.scale" and for "X.weight.scale", which some third-party writers use.
std::string_view base_of(std::string_view name, std::string_view suffix) {
    name.remove_suffix(suffix.size());
    if (name.ends_with(weight_suffix)) name.remove_suffix(weight_suffix.size());
    return name;
}

Result<std::vector<int64_t>> hf_shape(const GgufTensor& tensor, GgufTransform transform) {
    const auto& s = tensor.shape;
    switch (transform) {
        case GgufTransform::a_log:
        case GgufTransform::column:
            if (s.size() == 2 && s[1] != 1) return wrong_shape(tensor, "[n, 1]");
            if (s.size() > 2) return wrong_shape(tensor, "[n, 1]");
            return std::vector<int64_t>{s[0]};
        case GgufTransform::conv1d:
            if (s.size() != 2) return wrong_shape(tensor, "[channels, kernel]");
            return std::vector<int64_t>{s[0], 1, s[1]};
        case GgufTransform::flatten: {
            int64_t n = 1;
            for (const int64_t d : s) n *= d;  // no overflow: the reader has checked the product
            return std::vector<int64_t>{n};
        }
        case GgufTransform::experts:
            if (s.size() != 3) return wrong_shape(tensor, "[experts, out, in]");
            return std::vector<int64_t>{s[1], s[2]};
        default:
            if (s.size() > 2) return wrong_shape(tensor, "a vector or a matrix");
            return s;
    }
}

}  // namespace

int64_t GgufSourceTensor::cols() const {
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
}

Bytes GgufSourceTensor::data() const {
    if (expert < 0) return source->data;
    const size_t bytes = source->data.size() / source->shape[0];
    return source->data.subspan(expert * bytes, bytes);
}

Result<GgufSource> GgufSource::open(const std::filesystem::path& path, ScaleReading scales) {
    NIBBLE_TRY(auto file, GgufFile::open(path));
    return from(std::move(file), scales).within(path.string());
}

Result<GgufSource> GgufSource::from(GgufFile file, ScaleReading scales) {
    GgufSource source(std::make_unique<GgufFile>(std::move(file)));
    source.scales_ = scales;
    NIBBLE_CHECK(source.map_tensors());
    return source;
}

Status GgufSource::map_tensors() {
    NIBBLE_TRY(const std::string_view name, file_->metadata().string("general.architecture"));
    NIBBLE_TRY(const GgufArchitecture architecture, find_gguf_architecture(name));
    NIBBLE_TRY(config_, gguf_model_config(*file_));
    NIBBLE_TRY(const ModelConfig model, model_config(config_));
    const std::vector<GgufPart> list = gguf_parts(model, architecture);
    GgufParts parts;
    for (const GgufPart& part : list) parts[part.gguf].push_back(&part);
    for (const GgufTensor& tensor : file_->tensors()) NIBBLE_CHECK(add(parts, tensor, name));
    // A truncated file can still be parsed, so every required tensor is checked.
    for (const GgufPart& part : list)
        if (part.gguf.ends_with(weight_suffix) && !file_->find_tensor(part.gguf))
            return fail("the file has no tensor {}", gguf_shown(part.gguf));
    return Ok{};
}

Status GgufSource::add(const GgufParts& parts, const GgufTensor& tensor, std::string_view architecture) {
    if (tensor.name == "rope_freqs.weight") return Ok{};  // read as rope_scaling of the config
    if (tensor.name == "output.weight" && config_["tie_word_embeddings"] == true) {
        notes_.push_back("output.weight is a copy of token_embd.weight: it is used once");
        return Ok{};
    }
    const std::string_view name = tensor.name;
    if (name.ends_with(input_scale_suffix)) {
        left_out_.push_back(tensor.name);
        return check_scale(tensor, base_of(name, input_scale_suffix));
    }
    if (name.ends_with(scale_suffix)) return check_scale(tensor, base_of(name, scale_suffix));

    const auto found = parts.find(tensor.name);
    if (found == parts.end()) {
        const int64_t layers = config_["num_hidden_layers"];
        int64_t layer = -1;
        if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
        if (layer >= layers) return fail("tensor {} is beyond the {} layers of the model", gguf_shown(name), layers);
        return fail("tensor {} has no counterpart in a Hugging Face {} model", gguf_shown(name), architecture);
    }
    if (!ggml_can_dequantize(tensor.type))
        return fail("tensor {} is {}, which nibble cannot decode: requantize the file to a K type, Q8_0 or BF16",
                    gguf_shown(name), ggml_type_name(tensor.type));

    const GgufPart& part = *found->second[0];
    const bool stack = part.transform == GgufTransform::experts;
    NIBBLE_TRY(const auto shape, hf_shape(tensor, part.transform));
    if (stack && part.count != tensor.shape[0]) return wrong_shape(tensor, fmt::format("{} experts", part.count));
    if (part.transform == GgufTransform::rope && (part.head_dim % 2 != 0 || shape[0] != part.count * part.head_dim))
        return wrong_shape(tensor, fmt::format("rows for {} heads of {}", part.count, part.head_dim));
    NIBBLE_TRY(const auto scales, scales_of(tensor, scale_suffix, stack ? tensor.shape[0] : 1));
    for (const GgufPart* one : found->second) {
        GgufSourceTensor out{.name = one->hf,
                             .shape = shape,
                             .dtype = one->keep_f32 ? DType::f32 : DType::bf16,
                             .source = &tensor,
                             .transform = one->transform,
                             .expert = one->expert,
                             .head_dim = one->head_dim};
        if (!scales.empty()) out.scale = scales[stack ? size_t(one->expert) : 0];
        tensors_.push_back(std::move(out));
    }
    return Ok{};
}

// Returns the values of X.SUFFIX for X.weight: one, or one per expert; empty: the file has no such tensor.
Result<std::vector<float>> GgufSource::scales_of(const GgufTensor& tensor, std::string_view suffix,
                                                 int64_t count) const {
    if (!tensor.name.ends_with(weight_suffix)) return std::vector<float>();
    const std::string_view base = base_of(tensor.name, weight_suffix);
    const GgufTensor* found = file_->find_tensor(fmt::format("{}{}", base, suffix));
    if (!found) found = file_->find_tensor(fmt::format("{}{}{}", base, weight_suffix, suffix));
    if (!found) return std::vector<float>();
    const auto values = static_cast<int64_t>(found->data.size() / sizeof(float));
    if (found->type != GgmlType::f32 || values != count)
        return fail("tensor {} must be {} F32 values, found shape {} of {}", gguf_shown(found->name), count,
                    gguf_shape_text(found->shape), ggml_type_name(found->type));
    std::vector<float> scales(count);
    std::memcpy(scales.data(), found->data.data(), found->data.size());
    for (const float s : scales)
        if (scales_ == ScaleReading::checked && (!std::isfinite(s) || s <= 0))
            return fail("tensor {} holds {}: a scale is finite and positive", gguf_shown(found->name), s);
    return scales;
}

Result<std::optional<float>> GgufSource::input_scale(const GgufSourceTensor& tensor) const {
    const bool stack = tensor.expert >= 0;
    NIBBLE_TRY(const auto scales, scales_of(*tensor.source, input_scale_suffix, stack ? tensor.source->shape[0] : 1));
    return scales.empty() ? std::optional<float>() : scales[stack ? tensor.expert : 0];
}

Bytes GgufSource::row_blocks(const GgufSourceTensor& tensor, int64_t row) const {
    const Bytes data = tensor.data();
    const size_t row_bytes = data.size() / tensor.rows();
    return data.subspan((tensor.head_dim > 0 ? gguf_row_of_hf_row(row, tensor.head_dim) : row) * row_bytes, row_bytes);
}

Status GgufSource::check_scale(const GgufTensor& scale, std::string_view base) const {
    const GgufTensor* weight = file_->find_tensor(fmt::format("{}{}", base, weight_suffix));
    if (!weight) return fail("tensor {} belongs to no weight", gguf_shown(scale.name));
    if (weight->type != GgmlType::nvfp4)
        return fail("tensor {} scales {}, which is {}: only NVFP4 has scales", gguf_shown(scale.name),
                    gguf_shown(weight->name), ggml_type_name(weight->type));
    return Ok{};
}

Status GgufSource::read_rows(const GgufSourceTensor& tensor, int64_t begin, int64_t end, float* out) const {
    if (begin < 0 || end < begin || end > tensor.rows())
        return fail("tensor '{}' has {} rows, asked for [{}, {})", gguf_shown(tensor.name), tensor.rows(), begin, end);
    const Bytes data = tensor.data();
    const GgmlType type = tensor.source->type;
    const int64_t rows = tensor.rows(), cols = tensor.cols(), count = (end - begin) * cols;
    const bool rope = tensor.head_dim > 0;
    if (tensor.shape.size() == 1) {  // one block may span several entries of a vector; vectors are short, so all of it
                                     // is decoded
        std::vector<float> all(rows);
        NIBBLE_CHECK(ggml_dequantize(type, data, all.data(), rows, tensor.scale).within(tensor.name));
        for (int64_t r = begin; r < end; ++r) out[r - begin] = all[rope ? gguf_row_of_hf_row(r, tensor.head_dim) : r];
    } else {
        const size_t row_bytes = data.size() / rows;
        if (!rope) {
            NIBBLE_CHECK(ggml_dequantize(type, data.subspan(begin * row_bytes, (end - begin) * row_bytes), out, count,
                                         tensor.scale)
                             .within(tensor.name));
        }
        for (int64_t r = begin; rope && r < end; ++r)
            NIBBLE_CHECK(ggml_dequantize(type, row_blocks(tensor, r), out + (r - begin) * cols, cols, tensor.scale)
                             .within(tensor.name));
    }
    if (tensor.transform == GgufTransform::norm_shift)
        for (int64_t i = 0; i < count; ++i) out[i] -= 1.0f;
    if (tensor.transform == GgufTransform::a_log || tensor.transform == GgufTransform::a_log_flat)
        for (int64_t i = 0; i < count; ++i) {
            if (!(out[i] < 0))
                return fail("tensor {} holds {}: a state matrix is negative", gguf_shown(tensor.source->name), out[i]);
            out[i] = static_cast<float>(std::log(-static_cast<double>(out[i])));
        }
    return Ok{};
}

Status GgufSource::read_rows_bf16(const GgufSourceTensor& tensor, int64_t begin, int64_t end, uint16_t* out) const {
    if (begin < 0 || end < begin || end > tensor.rows())
        return fail("tensor '{}' has {} rows, asked for [{}, {})", gguf_shown(tensor.name), tensor.rows(), begin, end);
    std::vector<float> values((end - begin) * tensor.cols());
    NIBBLE_CHECK(read_rows(tensor, begin, end, values.data()));
    std::ranges::transform(values, out, bf16_from_float);
    return Ok{};
}

}  // namespace nibble
