// The backward pass of a whole model, block by block: the forward pass keeps the inputs of some blocks, the others are
// computed again from them, and each block computes its own intermediates again. What calibration reads off an observer
// (for each linear: rows x, rows g) and training off a gradient sink comes from here.
//
// Memory: one block's weights (when they are loaded one at a time), the intermediates of one batch, two residual
// streams in FP32 and ceil(blocks / stride) + stride - 1 in BF16 with Compute::bf16 (where that loses nothing), else in
// FP32; the stride is the smallest that fits BackwardOptions::memory. stride > 1 costs one more forward pass.
#pragma once

#include "base/philox.h"
#include "model/cpu/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace nibble {

struct BackwardOptions {
    // Labels of the log-likelihood. Without a value: the text's own next tokens, and the gradient is that of the mean
    // of -log p over them. With a stream: one label per position drawn from the model's own distribution (draw `row` of
    // the stream, rows counted over all texts), and the gradient is that of the sum of -log p.
    std::optional<PhiloxStream> sampled;
    int64_t batch_tokens = 4096;          // rows of one pass through a block, whole texts
    int64_t memory = int64_t{2} << 30;    // bytes of residual streams before they go to a file
    std::filesystem::path scratch = ".";  // folder of that file
    // Texts [0, gradient_texts) go forward and back; the others, for an observer's sake, forward only. -1: all.
    int64_t gradient_texts = -1;
    Observer* forward_observer = nullptr;  // sees the first forward pass, of all texts
    // Called when all rows went forward through block `index`.
    std::function<Status(size_t index)> forward_done;
    // Called when all rows went back through block `index` (which calibration may then solve and forget).
    std::function<Status(size_t index)> block_done;
    // Called after each batch with the number of (row, block) passes done and to do; an error stops the work.
    std::function<Status(int64_t done, int64_t all)> progress;
};

struct BackwardLoss {
    double sum = 0;     // of -log p
    int64_t count = 0;  // labels
    double mean() const { return sum / static_cast<double>(count); }
};

// Blocks of a loaded model, or loaded when they are wanted.
using BlockSource = std::function<Result<std::shared_ptr<const Block>>(size_t index)>;
BlockSource resident_blocks(const Model& model);
BlockSource streamed_blocks(const Checkpoint& checkpoint, const ModelConfig& config, const WeightOptions& options,
                            ThreadPool& pool);

// `texts`: token ids, none empty. The observer sees only the backward pass (model/gradients.h), last block first, each
// block's batches in order. Results do not depend on threads; gradients of parameters are added up over batches.
Result<BackwardLoss> backward(const ModelConfig& config, const Embedding& embedding, const Head& head,
                              const BlockSource& blocks, std::span<const std::vector<int32_t>> texts,
                              const BackwardOptions& options, Workspace& work, Observer* observer, GradientSink* sink);

}  // namespace nibble
