#include "model/backward.h"

#include "base/scratch_memory.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

struct Streams {  // how many residual streams are kept
    int64_t stride, checkpoints, between;
    int64_t all() const { return checkpoints + between + 1; }  // and the gradient's
};

Streams streams(int64_t blocks, int64_t stride) {
    return {stride, (blocks + stride - 1) / stride, std::max<int64_t>(stride - 1, 1)};
}

// The smallest stride that fits, or the one that needs least.
Streams plan_streams(int64_t blocks, int64_t stream_bytes, int64_t memory) {
    Streams best = streams(blocks, 1);
    for (int64_t stride = 1; stride <= blocks; ++stride) {
        const Streams s = streams(blocks, stride);
        if (s.all() * stream_bytes <= memory) return s;
        if (s.all() < best.all()) best = s;
    }
    return best;
}

class Pass {
public:
    Pass(const ModelConfig& config, const BlockSource& blocks, const BackwardOptions& options, Workspace& work,
         std::vector<BatchPiece> batches, const Streams& plan, float* memory, int64_t tokens)
        : config_(config),
          source_(blocks),
          options_(options),
          work_(work),
          batches_(std::move(batches)),
          plan_(plan),
          memory_(memory),
          tokens_(tokens),
          all_(tokens * std::ssize(config.blocks) * (plan.stride > 1 ? 3 : 2)) {}

    float* checkpoint(int64_t i) const { return memory_ + i * tokens_ * config_.hidden; }
    float* between(int64_t i) const { return checkpoint(plan_.checkpoints + i); }  // i < plan.between
    float* gradient() const { return checkpoint(plan_.checkpoints + plan_.between); }

    // x of the first block in checkpoint 0; returns where the last block's output is.
    Result<float*> forward() {
        float* x = between(0);
        std::copy_n(checkpoint(0), tokens_ * config_.hidden, x);
        for (int64_t b = 0; b < std::ssize(config_.blocks); ++b) {
            if (b % plan_.stride == 0) std::copy_n(x, tokens_ * config_.hidden, checkpoint(b / plan_.stride));
            NIBBLE_CHECK(run(b, x));
        }
        return x;
    }

    // The gradient in and out of gradient().
    Status backward(Observer* observer, GradientSink* sink) {
        const int64_t blocks = std::ssize(config_.blocks);
        for (int64_t c = plan_.checkpoints - 1; c >= 0; --c) {
            const int64_t begin = c * plan_.stride, end = std::min(begin + plan_.stride, blocks);
            for (int64_t b = begin + 1; b < end; ++b) {  // input of block b from that of block b - 1
                const float* from = b == begin + 1 ? checkpoint(c) : between(b - begin - 2);
                std::copy_n(from, tokens_ * config_.hidden, between(b - begin - 1));
                NIBBLE_CHECK(run(b - 1, between(b - begin - 1)));
            }
            for (int64_t b = end - 1; b >= begin; --b) {
                NIBBLE_TRY(const std::shared_ptr<const Block> block, source_(static_cast<size_t>(b)));
                const float* x = b == begin ? checkpoint(c) : between(b - begin - 1);
                for (const BatchPiece& piece : batches_) {
                    const int64_t at = piece.row * config_.hidden;
                    NIBBLE_CHECK(block->backward(piece.batch, x + at, gradient() + at, work_, observer, sink));
                    NIBBLE_CHECK(report(piece.batch.rows()));
                }
                if (options_.block_done) {
                    NIBBLE_CHECK(options_.block_done(static_cast<size_t>(b)));
                }
            }
        }
        return Ok{};
    }

private:
    Status run(int64_t b, float* x) {
        NIBBLE_TRY(const std::shared_ptr<const Block> block, source_(static_cast<size_t>(b)));
        for (const BatchPiece& piece : batches_) {
            NIBBLE_CHECK(block->forward(piece.batch, x + piece.row * config_.hidden, work_, nullptr));
            NIBBLE_CHECK(report(piece.batch.rows()));
        }
        return Ok{};
    }
    Status report(int64_t rows) {
        done_ += rows;
        return options_.progress ? options_.progress(std::min(done_, all_), all_) : Status(Ok{});
    }

    const ModelConfig& config_;
    const BlockSource& source_;
    const BackwardOptions& options_;
    Workspace& work_;
    std::vector<BatchPiece> batches_;
    Streams plan_;
    float* memory_;
    int64_t tokens_, all_, done_ = 0;
};

// The next token of every row, -1 after the last of a text.
std::vector<int32_t> next_tokens(std::span<const std::vector<int32_t>> texts) {
    std::vector<int32_t> labels;
    for (const std::vector<int32_t>& text : texts) {
        labels.insert(labels.end(), text.begin() + 1, text.end());
        labels.push_back(-1);
    }
    return labels;
}

Status embedding_gradient(const ModelConfig& config, std::span<const std::vector<int32_t>> texts, const float* dx,
                          GradientSink& sink) {
    std::vector<float> d(static_cast<size_t>(config.vocab * config.hidden));
    for (const std::vector<int32_t>& text : texts)
        for (const int32_t token : text) {
            float* row = d.data() + token * config.hidden;
            for (int64_t j = 0; j < config.hidden; ++j) row[j] += config.embedding_scale * dx[j];
            dx += config.hidden;
        }
    return sink.add(config.embedding, d.data(), config.vocab, config.hidden);
}

}  // namespace

BlockSource resident_blocks(const Model& model) {
    return [&model](size_t index) -> Result<std::shared_ptr<const Block>> {
        return std::shared_ptr<const Block>(std::shared_ptr<void>(), &model.blocks()[index]);
    };
}

BlockSource streamed_blocks(const Checkpoint& checkpoint, const ModelConfig& config, const WeightOptions& options,
                            ThreadPool& pool) {
    return [&checkpoint, &config, options, &pool](size_t index) -> Result<std::shared_ptr<const Block>> {
        NIBBLE_TRY(Block block, load_block(checkpoint, config, index, options, pool));
        return std::make_shared<const Block>(std::move(block));
    };
}

Result<BackwardLoss> backward(const ModelConfig& config, const Embedding& embedding, const Head& head,
                              const BlockSource& blocks, std::span<const std::vector<int32_t>> texts,
                              const BackwardOptions& options, Workspace& work, Observer* observer, GradientSink* sink) {
    int64_t tokens = 0, count = 0;
    for (const std::vector<int32_t>& text : texts) {
        if (text.empty()) return fail("a text of the backward pass has no tokens");
        tokens += std::ssize(text);
        count += std::ssize(text) - 1;
    }
    if (options.sampled) count = tokens;
    if (count == 0) return fail("no text has a next token to predict");
    const int64_t stream_bytes = tokens * config.hidden * int64_t{sizeof(float)};
    const Streams plan = plan_streams(std::ssize(config.blocks), stream_bytes, options.memory);
    NIBBLE_TRY(const ScratchMemory memory, ScratchMemory::create(static_cast<size_t>(plan.all() * stream_bytes),
                                                                 static_cast<size_t>(options.memory), options.scratch));
    Pass pass(config, blocks, options, work, whole_batches(texts, options.batch_tokens), plan,
              reinterpret_cast<float*>(memory.data()), tokens);
    int64_t row = 0;
    for (const std::vector<int32_t>& text : texts) {
        NIBBLE_CHECK(embedding.forward(text, pass.checkpoint(0) + row * config.hidden, work));
        row += std::ssize(text);
    }
    NIBBLE_TRY(const float* out, pass.forward());
    Head::Labels labels{.sampled = options.sampled, .scale = options.sampled ? 1.0f : 1.0f / static_cast<float>(count)};
    if (!options.sampled) labels.given = next_tokens(texts);
    BackwardLoss loss{.count = count};
    NIBBLE_TRY(loss.sum, head.backward(out, tokens, labels, pass.gradient(), work, observer, sink));
    NIBBLE_CHECK(pass.backward(observer, sink));
    if (sink) {
        NIBBLE_CHECK(embedding_gradient(config, texts, pass.gradient(), *sink));
    }
    return loss;
}

}  // namespace nibble
