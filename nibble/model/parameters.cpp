#include "model/parameters.h"

#include "formats/minifloat.h"
#include "model/cpu/widen.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t publish_run = 1 << 16;  // elements per task

}  // namespace

Result<std::shared_ptr<Parameters>> Parameters::copy(const Checkpoint& from, DType published, ThreadPool& pool) {
    if (published != DType::bf16 && published != DType::f32)
        return fail("parameters are published as BF16 or F32, not {}", dtype_name(published));
    auto made = std::shared_ptr<Parameters>(new Parameters);
    made->path_ = from.path();
    made->config_ = from.config();
    NIBBLE_TRY(made->side_files_, from.side_files());
    const auto tensors = from.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        CheckpointTensor t = tensors[i];
        if (t.quantized())
            return fail(
                "tensor '{}' is quantized ({}): training starts from plain weights (nibble convert --format bf16)",
                t.name, format_name(t.format));
        if (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32)
            return fail("tensor '{}' is {}: training reads BF16, F16 and F32", t.name, dtype_name(t.dtype));
        std::vector<float> master(static_cast<size_t>(t.rows() * t.cols()));
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, from.read_plain(i, 0, t.rows(), scratch));
        widen(view, master.data());
        from.done_with(i, 0, t.rows());
        for (size_t j = 0; j < master.size(); ++j)
            if (!is_finite(master[j])) return fail("tensor '{}': element {} is not finite", t.name, j);
        if (t.dtype != DType::f32 || t.shape.size() > 1) t.dtype = published;
        made->add(std::move(t), std::move(master));
    }
    made->publish(pool);
    return made;
}

std::shared_ptr<Parameters> Parameters::create(std::vector<Value> values, Json config, DType published,
                                               ThreadPool& pool) {
    auto made = std::shared_ptr<Parameters>(new Parameters);
    made->config_ = std::move(config);
    for (Value& value : values)
        made->add({.name = std::move(value.name), .shape = std::move(value.shape), .dtype = published},
                  std::move(value.master));
    made->publish(pool);
    return made;
}

void Parameters::add(CheckpointTensor tensor, std::vector<float> master) {
    tensor.file.clear();
    tensor.listed_module = false;
    tensor.stored_type = std::string(dtype_name(tensor.dtype));
    tensor.stored_bytes = tensor.rows() * tensor.cols() * dtype_bytes(tensor.dtype);
    ids_.emplace(tensor.name, tensors_.size());
    values_.emplace_back(tensor.dtype, tensor.rows(), tensor.cols());
    masters_.push_back(std::move(master));
    tensors_.push_back(std::move(tensor));
}

Result<size_t> Parameters::id(const std::string& name) const {
    const auto found = ids_.find(name);
    if (found == ids_.end()) return fail("no parameter is called '{}'", name);
    return found->second;
}

int64_t Parameters::elements() const {
    int64_t sum = 0;
    for (const std::vector<float>& master : masters_) sum += std::ssize(master);
    return sum;
}

void Parameters::publish(ThreadPool& pool) {
    for (size_t i = 0; i < masters_.size(); ++i) {
        const float* from = masters_[i].data();
        std::byte* to = values_[i].data.data();
        const int64_t n = std::ssize(masters_[i]);
        const bool bf16 = tensors_[i].dtype == DType::bf16;
        pool.parallel_for((n + publish_run - 1) / publish_run, [&](int64_t run) {
            const int64_t first = run * publish_run, last = std::min(first + publish_run, n);
            if (!bf16) {
                std::memcpy(to + first * 4, from + first, static_cast<size_t>(last - first) * sizeof(float));
                return;
            }
            for (int64_t j = first; j < last; ++j) {
                const uint16_t code = bf16_from_float(from[j]);
                std::memcpy(to + j * 2, &code, sizeof code);
            }
        });
    }
    ++version_;
}

Result<MatrixView> Parameters::read_plain(size_t index, int64_t begin, int64_t count, Matrix&) const {
    return published(index).panel(begin, count);
}

Result<QuantView> Parameters::read_quant(size_t index, int64_t, int64_t, QuantMatrix&) const {
    return fail("tensor '{}' is not quantized", tensors_[index].name);
}

}  // namespace nibble
