// The passes of a model over texts as stages that ranks divide (parallel/stage_chain.h): a stage runs a span of blocks,
// pieces are the residual streams of batches.
#pragma once

#include "base/progress.h"
#include "model/cpu/model.h"
#include "parallel/stage_chain.h"
#include "quant/block_spans.h"
#include "quant/meter.h"

#include <functional>
#include <memory>
#include <optional>

namespace nibble {

// Opens the chain of the pass `name` in a folder of its own below options.folder. `facts`: everything that decides the
// bits.
Result<std::unique_ptr<StageChain>> open_stages(StageChainOptions options, std::string_view name,
                                                std::string_view facts, int64_t stages, const JobHooks& hooks);

class StageStream {
public:
    // All arguments must outlive the object. Embedding and head are those of `source`, loaded when they are needed.
    StageStream(const Checkpoint& source, const ModelConfig& config, Compute compute, ThreadPool& pool,
                const JobHooks& hooks)
        : source_(source),
          config_(config),
          compute_(compute),
          pool_(pool),
          hooks_(hooks),
          spans_(block_spans(config)) {}

    const std::vector<std::pair<int64_t, int64_t>>& spans() const { return spans_; }
    Result<const Head*> head();
    // Writes x [batch.rows(), width].
    Status embed(const Batch& batch, Workspace& work, float* x);
    // Loads the blocks of span `span` from `model`, with inputs quantized or not.
    Result<std::vector<Block>> load(const Checkpoint& model, int64_t span, bool quantized) const;
    // Runs the blocks of stage s, span s, on a piece of stage s - 1, and writes the result. Returns false if the stage
    // must be given up.
    Result<bool> forward(StageChain::Stage& stage, int64_t piece, const Batch& batch, std::span<const Block> blocks,
                         Workspace& work, Observer* observer);
    // Error: stopped on request.
    Status go_on() const;

private:
    WeightOptions weights(bool quantized) const {
        return {.compute = compute_, .quantize_activations = quantized, .kv = KvFormat::none};
    }
    const Checkpoint& source_;
    const ModelConfig& config_;
    Compute compute_;
    ThreadPool& pool_;
    const JobHooks& hooks_;
    std::vector<std::pair<int64_t, int64_t>> spans_;
    std::optional<Embedding> embedding_;
    std::optional<Head> head_;
    std::vector<float> x_;
};

// The forward and backward passes of a model (model/cpu/backward.h) as stages: one per block forward, one for the head,
// one per block backward. Gradients are those of labels drawn from the model's distribution.
class GradientStages {
public:
    struct Options {
        std::vector<std::vector<int32_t>> back, others;  // texts of both passes, and of the forward pass only
        Compute compute = Compute::bf16;
        int64_t batch_tokens = 4096;
        uint64_t seed = 1;
        const ByteKernels* bytes = nullptr;  // for products in 8-bit integers; null: exact ones
    };
    enum class Kind : uint8_t { forward, head, backward };
    struct Place {
        Kind kind;
        int64_t block = 0;  // forward, backward
    };
    struct Callbacks {
        // Called before the first piece of a stage. Returns the stage's observer, or null.
        std::function<Result<Observer*>(StageChain::Stage& stage, Place place)> begin;
        std::function<Status(StageChain::Stage& stage, Place place)> end;  // called after the last piece
    };

    // All arguments must outlive the object. Error: blocks that share keys or values, whose gradients are not divided.
    static Result<std::unique_ptr<GradientStages>> create(const Checkpoint& source, const ModelConfig& config,
                                                          Options options, ThreadPool& pool, const JobHooks& hooks);
    int64_t stages() const { return 2 * blocks_ + 1; }
    int64_t blocks() const { return blocks_; }
    Place place(int64_t stage) const;
    Status run(StageChain& chain, const Callbacks& callbacks, std::string_view phase);

private:
    GradientStages(const Checkpoint& source, const ModelConfig& config, Options options, ThreadPool& pool,
                   const JobHooks& hooks);
    Result<bool> forward(StageChain::Stage& stage, int64_t block, Workspace& work, Observer* observer);
    Result<bool> turn(StageChain::Stage& stage, Workspace& work, Observer* observer);
    Result<bool> backward(StageChain::Stage& stage, int64_t block, Workspace& work, Observer* observer);
    int64_t kept() const { return std::ssize(back_); }
    int64_t pieces() const { return std::ssize(back_) + std::ssize(others_); }

    const Checkpoint& source_;
    const ModelConfig& config_;
    Options options_;
    ThreadPool& pool_;
    const JobHooks& hooks_;
    StageStream stream_;
    int64_t blocks_;
    std::vector<BatchPiece> back_, others_;  // pieces 0 ... of the texts that go back, then the others
    std::unique_ptr<ProgressMeter> meter_;
};

}  // namespace nibble
