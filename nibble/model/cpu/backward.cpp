#include "model/cpu/backward.h"

#include "architecture/embedding_factor.h"
#include "base/scratch_memory.h"
#include "formats/minifloat.h"

#include <algorithm>

namespace nibble {
namespace {

struct Streams {  // Numbers of residual streams that are kept: checkpoints (block inputs of the forward pass) and
                  // recomputed ones.
    int64_t stride, checkpoints, between;
    int64_t kept() const { return checkpoints + between; }
};

Streams streams(int64_t blocks, int64_t stride) { return {stride, (blocks + stride - 1) / stride, stride - 1}; }

// Returns the smallest stride that fits, or the stride that needs the least memory.
Streams plan_streams(int64_t blocks, int64_t stream_bytes, int64_t memory) {
    Streams best = streams(blocks, 1);
    for (int64_t stride = 1; stride <= blocks; ++stride) {
        const Streams s = streams(blocks, stride);
        if (s.kept() * stream_bytes <= memory) return s;
        if (s.kept() < best.kept()) best = s;
    }
    return best;
}

// Residual streams of all rows, kept until the backward pass reads them.
class StreamStore {
public:
    static Result<StreamStore> create(int64_t streams, int64_t values, bool bf16, const BackwardOptions& options) {
        const int64_t bytes = streams * values * stored_bytes(bf16);
        NIBBLE_TRY(auto memory, ScratchMemory::create(static_cast<size_t>(bytes), static_cast<size_t>(options.memory),
                                                      options.scratch));
        return StreamStore(std::move(memory), values, bf16);
    }
    static int64_t stored_bytes(bool bf16) { return bf16 ? 2 : 4; }

    void put(int64_t stream, const float* x, const Workspace& work) {
        work.parallel_rows(values_, 1, [&](int64_t first, int64_t last) {
            if (!bf16_) {
                std::copy(x + first, x + last, reinterpret_cast<float*>(at(stream)) + first);
                return;
            }
            auto* codes = reinterpret_cast<uint16_t*>(at(stream));
            for (int64_t i = first; i < last; ++i) codes[i] = bf16_from_float(x[i]);
        });
    }
    void get(int64_t stream, int64_t begin, int64_t count, float* x, const Workspace& work) const {
        work.parallel_rows(count, 1, [&](int64_t first, int64_t last) {
            if (!bf16_) {
                const auto* from = reinterpret_cast<const float*>(at(stream)) + begin;
                std::copy(from + first, from + last, x + first);
                return;
            }
            const auto* codes = reinterpret_cast<const uint16_t*>(at(stream)) + begin;
            for (int64_t i = first; i < last; ++i) x[i] = bf16_to_float(codes[i]);
        });
    }

private:
    StreamStore(ScratchMemory memory, int64_t values, bool bf16)
        : memory_(std::move(memory)), values_(values), bf16_(bf16) {}
    std::byte* at(int64_t stream) const { return memory_.data() + stream * values_ * stored_bytes(bf16_); }

    ScratchMemory memory_;
    int64_t values_;
    bool bf16_;
};

// A group of texts that go through the blocks together: their batches and current residual streams x [tokens, hidden].
struct Lane {
    std::vector<BatchPiece> batches;
    std::vector<float> x;
    int64_t tokens = 0;

    Lane(std::span<const std::vector<int32_t>> texts, const BackwardOptions& options)
        : batches(whole_batches(texts, options.batch_tokens)) {
        for (const std::vector<int32_t>& text : texts) tokens += std::ssize(text);
    }
};

Status embed(const Embedding& embedding, std::span<const std::vector<int32_t>> texts, int64_t hidden, Workspace& work,
             Lane& lane) {
    lane.x.resize(static_cast<size_t>(lane.tokens * hidden));
    float* x = lane.x.data();
    for (const std::vector<int32_t>& text : texts) {
        NIBBLE_CHECK(embedding.forward(text, x, work));
        x += std::ssize(text) * hidden;
    }
    return Ok{};
}

class Pass {
public:
    // `lane` goes through the forward and the backward pass, `other` through the forward pass only.
    Pass(const ModelConfig& config, const BlockSource& blocks, const BackwardOptions& options, Workspace& work,
         Lane& lane, Lane& other, const Streams& plan, StreamStore& store)
        : config_(config),
          source_(blocks),
          options_(options),
          work_(work),
          lane_(lane),
          other_(other),
          plan_(plan),
          store_(store),
          all_((lane.tokens * (plan.stride > 1 ? 3 : 2) + other.tokens) * std::ssize(config.blocks)) {}

    // Runs both lanes from the embeddings to the outputs of the last block.
    Status forward() {
        for (int64_t b = 0; b < std::ssize(config_.blocks); ++b) {
            if (b % plan_.stride == 0) store_.put(b / plan_.stride, lane_.x.data(), work_);
            NIBBLE_TRY(const std::shared_ptr<const Block> block, source_(static_cast<size_t>(b)));
            for (Lane* lane : {&lane_, &other_}) NIBBLE_CHECK(run(*block, *lane, options_.forward_observer));
            forget_weights();
            if (options_.forward_done) {
                NIBBLE_CHECK(options_.forward_done(static_cast<size_t>(b)));
            }
        }
        other_ = Lane({}, options_);  // frees its memory
        return Ok{};
    }

    // gradient [tokens, hidden]: in: that of the last block's outputs; out: that of the first block's inputs.
    Status backward(float* gradient, Observer* observer, GradientSink* sink) {
        const int64_t blocks = std::ssize(config_.blocks), values = lane_.tokens * config_.hidden;
        for (int64_t c = plan_.checkpoints - 1; c >= 0; --c) {
            const int64_t begin = c * plan_.stride, end = std::min(begin + plan_.stride, blocks);
            if (end > begin + 1) store_.get(c, 0, values, lane_.x.data(), work_);
            for (int64_t b = begin + 1; b < end; ++b) {  // computes the input of block b from that of block b - 1
                NIBBLE_TRY(const std::shared_ptr<const Block> block, source_(static_cast<size_t>(b - 1)));
                NIBBLE_CHECK(run(*block, lane_, nullptr));
                forget_weights();
                store_.put(plan_.checkpoints + b - begin - 1, lane_.x.data(), work_);
            }
            for (int64_t b = end - 1; b >= begin; --b) {
                NIBBLE_TRY(const std::shared_ptr<const Block> block, source_(static_cast<size_t>(b)));
                const int64_t stream = b == begin ? c : plan_.checkpoints + b - begin - 1;
                for (const BatchPiece& piece : lane_.batches) {
                    const Arena::Scope scope(work_.arena);
                    const int64_t at = piece.row * config_.hidden, count = piece.batch.rows() * config_.hidden;
                    float* x = work_.arena.floats(count);
                    store_.get(stream, at, count, x, work_);
                    NIBBLE_CHECK(block->backward(piece.batch, x, gradient + at, work_, observer, sink));
                    NIBBLE_CHECK(report(piece.batch.rows()));
                }
                forget_weights();
                if (options_.block_done) {
                    NIBBLE_CHECK(options_.block_done(static_cast<size_t>(b)));
                }
            }
        }
        return Ok{};
    }

private:
    Status run(const Block& block, Lane& lane, Observer* observer) {
        for (const BatchPiece& piece : lane.batches) {
            NIBBLE_CHECK(block.forward(piece.batch, lane.x.data() + piece.row * config_.hidden, work_, observer));
            NIBBLE_CHECK(report(piece.batch.rows()));
        }
        return Ok{};
    }
    void forget_weights() {
        if (work_.bytes) work_.bytes->forget();
    }
    Status report(int64_t rows) {
        done_ += rows;
        return options_.progress ? options_.progress(std::min(done_, all_), all_) : Status(Ok{});
    }

    const ModelConfig& config_;
    const BlockSource& source_;
    const BackwardOptions& options_;
    Workspace& work_;
    Lane &lane_, &other_;
    Streams plan_;
    StreamStore& store_;
    int64_t all_, done_ = 0;
};

// Returns the next token of every row, -1 for the last row of a text.
std::vector<int32_t> next_tokens(std::span<const std::vector<int32_t>> texts) {
    std::vector<int32_t> labels;
    for (const std::vector<int32_t>& text : texts) {
        labels.insert(labels.end(), text.begin() + 1, text.end());
        labels.push_back(-1);
    }
    return labels;
}

Status embedding_gradient(const ModelConfig& config, std::span<const std::vector<int32_t>> texts, const float* dx,
                          bool bf16, GradientSink& sink) {
    const float factor = embedding_factor(config, bf16);
    std::vector<float> d(static_cast<size_t>(config.vocab * config.hidden));
    for (const std::vector<int32_t>& text : texts)
        for (const int32_t token : text) {
            float* row = d.data() + token * config.hidden;
            for (int64_t j = 0; j < config.hidden; ++j) row[j] += factor * dx[j];
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
    for (const std::vector<int32_t>& text : texts)
        if (text.empty()) return fail("the backward pass got a text without tokens");
    const auto going_back = options.gradient_texts < 0 ? texts.size() : static_cast<size_t>(options.gradient_texts);
    const auto back = texts.first(std::min(going_back, texts.size())), others = texts.subspan(back.size());
    Lane lane(back, options), other(others, options);
    const int64_t tokens = lane.tokens, values = tokens * config.hidden;
    const int64_t count = options.sampled ? tokens : tokens - std::ssize(back);
    if (count <= 0) return fail("no text has a next token to predict");
    const bool bf16 = work.bf16();
    const Streams plan =
        plan_streams(std::ssize(config.blocks), values * StreamStore::stored_bytes(bf16), options.memory);
    NIBBLE_TRY(StreamStore store, StreamStore::create(plan.kept(), values, bf16, options));
    NIBBLE_CHECK(embed(embedding, back, config.hidden, work, lane));
    NIBBLE_CHECK(embed(embedding, others, config.hidden, work, other));
    Pass pass(config, blocks, options, work, lane, other, plan, store);
    NIBBLE_CHECK(pass.forward());
    Head::Labels labels{.sampled = options.sampled, .scale = options.sampled ? 1.0f : 1.0f / static_cast<float>(count)};
    if (!options.sampled) labels.given = next_tokens(back);
    BackwardLoss loss{.count = count};
    std::vector<float> gradient(static_cast<size_t>(values));
    NIBBLE_TRY(loss.sum, head.backward(lane.x.data(), tokens, labels, gradient.data(), work, observer, sink));
    NIBBLE_CHECK(pass.backward(gradient.data(), observer, sink));
    if (sink) {
        NIBBLE_CHECK(embedding_gradient(config, back, gradient.data(), work.bf16(), *sink));
    }
    return loss;
}

}  // namespace nibble
