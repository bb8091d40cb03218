#include "train/device/flat_layout.h"

#include "base/checked.h"
#include "kernels/train_cuda.h"

#include <algorithm>

namespace nibble {
namespace {

class FlatMaker {
public:
    FlatMaker(const Parameters& parameters, FlatLayout& layout) : parameters_(parameters), layout_(layout) {
        layout_.at.assign(parameters.count(), -1);
    }

    // Tensors of equal width, one below the other.
    Result<FlatMatrix> matrix(std::span<const std::string> tensors) {
        FlatMatrix m{.name = tensors[0], .at = layout_.elements};
        for (const std::string& tensor : tensors) {
            NIBBLE_TRY(const size_t id, parameters_.id(tensor));
            const CheckpointTensor& t = parameters_.tensors()[id];
            if (t.shape.size() != 2 || (m.cols > 0 && t.cols() != m.cols) || t.dtype != DType::bf16)
                return fail("'{}' is {} of {} x {}: no place among the matrices of {}", tensor, dtype_name(t.dtype),
                            t.rows(), t.cols(), m.name);
            if (t.cols() % 8) return fail("'{}' has {} columns: a GPU needs a multiple of 8", tensor, t.cols());
            layout_.at[id] = m.at + m.elements();
            m.rows += t.rows(), m.cols = t.cols();
        }
        layout_.elements = round_up(m.at + m.elements(), flat_alignment);
        return m;
    }
    void vectors(DType dtype) {
        for (size_t id = 0; id < parameters_.count(); ++id) {
            const CheckpointTensor& t = parameters_.tensors()[id];
            if (layout_.at[id] >= 0 || t.dtype != dtype || t.shape.size() != 1 || !t.name.ends_with("norm.weight"))
                continue;
            layout_.at[id] = layout_.elements;
            layout_.elements = round_up(layout_.elements + t.rows() * t.cols(), flat_alignment);
        }
    }

private:
    const Parameters& parameters_;
    FlatLayout& layout_;
};

}  // namespace

Result<FlatLayout> FlatLayout::make(const Parameters& parameters, const ModelConfig& config, const ModelParts& parts) {
    FlatLayout layout;
    FlatMaker maker(parameters, layout);
    NIBBLE_TRY(layout.embedding, maker.matrix({{config.embedding}}));
    for (const Block& block : parts.blocks) {
        std::vector<FlatMatrix> units;
        for (const std::span<const Linear> unit : block.mixer().units()) {
            std::vector<std::string> names;
            for (const Linear& part : unit) names.push_back(part.name + ".weight");
            NIBBLE_TRY(units.emplace_back(), maker.matrix(names));
        }
        layout.units.push_back(std::move(units));
    }
    layout.tied = config.head == config.embedding;
    if (layout.tied) {
        layout.head = layout.embedding;
    } else {
        NIBBLE_TRY(layout.head, maker.matrix({{config.head}}));
    }
    layout.matrix_elements = layout.elements;
    maker.vectors(DType::bf16);
    layout.rounded_vectors = layout.elements - layout.matrix_elements;
    maker.vectors(DType::f32);
    for (size_t id = 0; id < parameters.count(); ++id)
        if (layout.at[id] < 0)
            return fail(
                "parameter '{}' is not trained on --device cuda (biases and mixers other than attention and MLP "
                "are not)",
                parameters.tensors()[id].name);
    return layout;
}

FlatShard FlatShard::of(int64_t matrix_elements, int rank, int size) {
    const auto section = [&](int r) { return cuda::square_sections * r / size; };
    const int64_t each = cuda::section_elements(matrix_elements);
    FlatShard shard{.first_section = section(rank), .sections = section(rank + 1) - section(rank)};
    shard.begin = std::min(matrix_elements, each * section(rank));
    shard.end = std::min(matrix_elements, each * section(rank + 1));
    return shard;
}

FlatRun FlatShard::run(const FlatLayout& flat, int64_t at, int64_t count) const {
    if (at >= flat.matrix_elements) return {0, at, count};
    const int64_t from = std::max(at, begin), to = std::min(at + count, end);
    return from < to ? FlatRun{from - at, from, to - from} : FlatRun{};
}

}  // namespace nibble
