#include "checkpoint/new_weights.h"

#include "base/json.h"
#include "formats/minifloat.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

template <class Stored, class Round>
void store_values(std::span<const float> values, std::byte* out, Round round) {
    for (size_t i = 0; i < values.size(); ++i) {
        const Stored stored = round(values[i]);
        std::memcpy(out + i * sizeof stored, &stored, sizeof stored);
    }
}

}  // namespace

NewWeights::NewWeights(std::shared_ptr<const Checkpoint> base)
    : base_(std::move(base)),
      tensors_(base_->tensors().begin(), base_->tensors().end()),
      values_(tensors_.size()),
      given_(tensors_.size()) {
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

Status NewWeights::set(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) {
    const auto found = index_.find(name);
    if (found == index_.end()) {
        if (name == "lm_head.weight" && base_->config().value("tie_word_embeddings", Json()) == Json(true)) return Ok{};
        return fail(ErrorKind::usage, "{}: the model has no tensor of this name; names are those of its checkpoint",
                    name);
    }
    CheckpointTensor& t = tensors_[found->second];
    if (!std::ranges::equal(shape, t.shape))
        return fail(ErrorKind::shape, "{}: has shape [{}], the model's tensor [{}]", name, fmt::join(shape, ", "),
                    fmt::join(t.shape, ", "));
    const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
    if (bad != values.end())
        return fail(ErrorKind::shape, "{}: element {} is not finite", name, std::distance(values.begin(), bad));
    auto matrix = std::make_shared<Matrix>(t.dtype, t.rows(), t.cols());
    switch (t.dtype) {
        case DType::f32:
            std::memcpy(matrix->data.data(), values.data(), values.size_bytes());
            break;
        case DType::bf16:
            store_values<uint16_t>(values, matrix->data.data(), bf16_from_float);
            break;
        case DType::f16:
            store_values<uint16_t>(values, matrix->data.data(), fp16_from_float);
            break;
        default:
            return fail(ErrorKind::usage,
                        "{}: the model's tensor is {}; only BF16, F16, F32 and quantized weights can "
                        "be replaced",
                        name, dtype_name(t.dtype));
    }
    values_[found->second] = std::move(matrix);
    given_[found->second] = true;
    t.format = Format::none;
    t.activation = ActivationFormat::none;
    t.input_scale.reset();
    t.stored_type = std::string(dtype_name(t.dtype));
    t.file.clear();
    return Ok{};
}

Result<MatrixView> NewWeights::read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const {
    if (!values_[index]) return base_->read_plain(index, begin, count, scratch);
    return values_[index]->view().panel(begin, count);
}

void NewWeights::done_with(size_t index, int64_t begin, int64_t count) const {
    if (!values_[index]) base_->done_with(index, begin, count);
}

}  // namespace nibble
