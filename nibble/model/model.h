// A model that runs: config, weights, forward. One forward pass serves calibration, evaluation, generation, rollouts
// and training; backward walks the same blocks.
//
// Values between operators are FP32 arrays; with Compute::bf16 every operator rounds its result to BF16 (as a BF16
// model does), with f32 nothing is rounded. Both are exact functions of weights and of the tokens before: the bits of a
// row depend on no other row, no chunking, no thread count and no instruction set (design.md 4).
#pragma once

#include "model/batch.h"
#include "model/block.h"
#include "model/config.h"

namespace nibble {

struct ModelOptions {
    Compute compute = Compute::bf16;
    KvFormat kv = KvFormat::none;      // none: BF16 (F32 with Compute::f32), or what the checkpoint stores scales for
    bool quantize_activations = true;  // false: W4A16 / W8A16 whatever the checkpoint says about inputs
    std::string kernels;               // forces an entry of matmul_kernels(); empty: the best of this CPU
};

class Model {
public:
    // Checks every tensor's presence and shape against the config before it packs any.
    static Result<Model> load(const Checkpoint& checkpoint, const ModelOptions& options, ThreadPool& pool);

    const ModelConfig& config() const;
    // Blocks own their weights; calibration loads, runs and drops them one at a time (load_block).
    std::span<const std::unique_ptr<Block>> blocks() const;

    // Runs the rows of `batch` through everything and advances its sequences. logits [batch.wanted(), vocab].
    Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const;

    // The pieces, for callers that stream: rows of the embedding, one block, the head.
    Status embed(std::span<const int32_t> tokens, float* x) const;
    Status head(const float* x, int64_t rows, float* logits, Observer* observer = nullptr) const;
};

}  // namespace nibble
