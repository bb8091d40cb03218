// The backward pass of a whole model, block by block. The forward pass keeps the inputs of some blocks and recomputes
// the others from them; each block recomputes its own intermediates. Calibration reads its data (rows x and g of each
// linear) through an observer, training through a gradient sink.
//
// Memory: one block's weights (when blocks are loaded one at a time), the intermediates of one batch, two residual
// streams in FP32, and ceil(blocks / stride) + stride - 1 streams that are BF16 if this is exact with Compute::bf16,
// else FP32. The stride is the smallest that fits BackwardOptions::memory. stride > 1 costs one more forward pass.
#pragma once

#include "base/philox.h"
#include "model/cpu/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace nibble {

struct BackwardOptions {
    // Source of the labels of the log-likelihood. No value: each text's next tokens; the gradient is that of the mean
    // of -log p. With a stream: one label per position, drawn from the model's own distribution (draw `row` of the
    // stream, rows counted over all texts); the gradient is that of the sum of -log p.
    std::optional<PhiloxStream> sampled;
    int64_t batch_tokens = 4096;          // rows of one pass through a block; texts are not split
    int64_t memory = int64_t{2} << 30;    // bytes of residual streams in memory; more goes to a file
    std::filesystem::path scratch = ".";  // folder of this file
    // Texts [0, gradient_texts) go through the forward and the backward pass. The other texts go through the forward
    // pass only, so that an observer sees them. -1: all texts go through both.
    int64_t gradient_texts = -1;
    Observer* forward_observer = nullptr;  // sees the first forward pass, of all texts
    // Called after the forward pass of all rows through block `index`.
    std::function<Status(size_t index)> forward_done;
    // Called after the backward pass of all rows through block `index`. Calibration may then solve the block and free
    // its data.
    std::function<Status(size_t index)> block_done;
    // Called after each batch with the number of finished and of all (row, block) passes. An error stops the work.
    std::function<Status(int64_t done, int64_t all)> progress;
};

struct BackwardLoss {
    double sum = 0;     // sum of -log p
    int64_t count = 0;  // number of labels
    double mean() const { return sum / static_cast<double>(count); }
};

// Return the blocks of a loaded model, or load each block on request.
using BlockSource = std::function<Result<std::shared_ptr<const Block>>(size_t index)>;
BlockSource resident_blocks(const Model& model);
BlockSource streamed_blocks(const Checkpoint& checkpoint, const ModelConfig& config, const WeightOptions& options,
                            ThreadPool& pool);

// Runs the backward pass. `texts`: token ids, no text is empty. The observer sees only the backward pass
// (model/gradients.h): the last block first, and each block's batches in order. Results do not depend on the number of
// threads. Gradients of parameters are summed over batches. Errors: those of the forward pass, of `blocks`, of the
// scratch file, and of the callbacks.
Result<BackwardLoss> backward(const ModelConfig& config, const Embedding& embedding, const Head& head,
                              const BlockSource& blocks, std::span<const std::vector<int32_t>> texts,
                              const BackwardOptions& options, Workspace& work, Observer* observer, GradientSink* sink);

}  // namespace nibble
