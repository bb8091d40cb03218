// Splits experts that a checkpoint stacks in 3-D tensors into one matrix per expert and projection:
//
//   P.experts.gate_up_proj  [E, 2I, H]  ->  P.experts.{e}.gate_proj.weight [I, H], P.experts.{e}.up_proj.weight [I, H]
//   P.experts.down_proj     [E, H, I]   ->  P.experts.{e}.down_proj.weight [H, I]
//
// This is the layout of transformers >= 5 and Qwen3.5-MoE files. Transposed stacks [E, H, 2I] and [E, I, H] are split
// as well (Llama 4, Qwen3-VL-MoE files), Granite's block_sparse_moe.input_linear and output_linear, and stacks with
// separate gate_proj and up_proj or without gate_proj. Every name may end in ".weight". The gate comes first. The
// shapes of a layer's tensors together determine whether they are transposed; if they do not (no gate_up_proj),
// hidden_size of the configuration decides.
#pragma once

#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "io/model_files.h"
#include "tensor/matrix.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct ExpertStack {
    std::string experts;                        // "model.layers.0.mlp.experts"
    std::vector<std::string_view> projections;  // in their order along the outputs: {"gate_proj", "up_proj"}
    bool transposed = false;                    // stored as [experts, in, out]
    bool matrix = false;                        // stays one matrix: engines read the stack as one parameter
    std::string whole;                          // why it is neither split nor a matrix; empty: it is
};

// A tensor that may be a stack, with the shape it has after decoding.
struct StackTensor {
    const ModelTensor* tensor = nullptr;  // the stored tensor
    std::string_view name;
    std::vector<int64_t> shape;
    bool quantized = false;  // only split if its experts are [out, in]
    bool turned = false;     // quantized, and stored transposed relative to `shape`
};

// Returns all stacks among the candidates except those of multi-token prediction layers, which are copied unchanged.
// `files`: searched for biases, with which a stack cannot be split.
std::unordered_map<const ModelTensor*, ExpertStack> find_expert_stacks(std::span<const StackTensor> candidates,
                                                                       const ModelFiles& files, const Json& config,
                                                                       StackReading reading = StackReading::split);

struct ExpertMatrix {
    std::string name;
    int64_t rows = 0, cols = 0;
    int64_t first = 0;   // element of the stack where the matrix begins
    int64_t stride = 0;  // if transposed: elements from one input to the next; else 0, and the rows are adjacent
    int64_t expert = 0, row = 0;  // its expert, and the index of its first output in that expert's tensor
};

// Returns the matrices expert by expert. Precondition: `stack` is split; `shape` is that of its tensor.
std::vector<ExpertMatrix> expert_matrices(const ExpertStack& stack, std::span<const int64_t> shape);

// A matrix [rows, cols] whose element (r, c) is element first + r + c * stride of the stored bytes.
struct TransposedMatrix {
    Bytes stored;
    int element_bytes = 2;  // 1, 2, 4 or 8
    int64_t first = 0, stride = 0, cols = 0;
};
// Writes rows [begin, begin + rows) of the matrix to `out`.
void read_transposed(const TransposedMatrix& matrix, int64_t begin, int64_t rows, std::byte* out);
// Writes rows [begin, begin + rows) of a stack in one matrix [experts * outputs, cols], which is stored as [experts,
// cols, outputs].
void read_stack(Bytes stored, int element_bytes, int64_t outputs, int64_t cols, int64_t begin, int64_t rows,
                std::byte* out);

// Calls visit(expert, first, count, done) for the experts to which rows [begin, begin + rows) of such a matrix belong:
// outputs [first, first + count) of the expert are rows [begin + done, begin + done + count).
template <class Visit>
void for_each_expert(int64_t outputs, int64_t begin, int64_t rows, Visit visit) {
    for (int64_t done = 0; done < rows;) {
        const int64_t row = begin + done, first = row % outputs, count = std::min(outputs - first, rows - done);
        visit(row / outputs, first, count, done);
        done += count;
    }
}

}  // namespace nibble
