// Experts that a checkpoint stacks in 3-D tensors, seen as one matrix per expert and projection:
//
//   P.experts.gate_up_proj  [E, 2I, H]  ->  P.experts.{e}.gate_proj.weight [I, H], P.experts.{e}.up_proj.weight [I, H]
//   P.experts.down_proj     [E, H, I]   ->  P.experts.{e}.down_proj.weight [H, I]
//
// (transformers >= 5; Qwen3.5-MoE on disk), their transposes [E, H, 2I] and [E, I, H] (Llama 4, Qwen3-VL-MoE on disk),
// and the same with gate_proj and up_proj apart or without gate_proj, each name with or without ".weight". Gate comes
// first. The shapes of a layer's tensors together tell which of the two it is; where they cannot (no gate_up_proj),
// hidden_size of the configuration does.
#pragma once

#include "base/json.h"
#include "base/mapped_file.h"
#include "io/model_files.h"
#include "tensor/matrix.h"

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
    std::string whole;                          // why it cannot be split; empty when it can
};

// A tensor that may be a stack: as it is, or as it is decoded.
struct StackTensor {
    const ModelTensor* tensor = nullptr;  // where it is stored
    std::string_view name;
    std::vector<int64_t> shape;
    bool quantized = false;  // decoded as it is read: only split where its experts lie as [out, in]
    bool turned = false;     // quantized, and stored the other way round than `shape` says
};

// Every stack among the candidates, but not those of multi-token prediction layers, which are copied as they are.
// `files` are asked for biases.
std::unordered_map<const ModelTensor*, ExpertStack> find_expert_stacks(std::span<const StackTensor> candidates,
                                                                       const ModelFiles& files, const Json& config);

struct ExpertMatrix {
    std::string name;
    int64_t rows = 0, cols = 0;
    int64_t first = 0;            // element of the stack where it begins
    int64_t stride = 0;           // transposed: elements from one input to the next; else 0, and the rows are adjacent
    int64_t expert = 0, row = 0;  // its expert, and the first of that expert's outputs
};

// Expert by expert. Precondition: `stack.whole` is empty; `shape` is that of its tensor.
std::vector<ExpertMatrix> expert_matrices(const ExpertStack& stack, std::span<const int64_t> shape);

// Rows [begin, begin + out.rows) of a transposed matrix: `stored` are the stack's bytes, out.cols the matrix' inputs.
// Precondition: the dtype has 2, 4 or 8 bytes.
void read_transposed(Bytes stored, int64_t first, int64_t stride, int64_t begin, Matrix& out);

}  // namespace nibble
