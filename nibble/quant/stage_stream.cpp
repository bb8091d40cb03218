#include "quant/stage_stream.h"

#include "io/journal.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<StageChain>> open_stages(StageChainOptions options, std::string_view name,
                                                std::string_view facts, int64_t stages, const JobHooks& hooks) {
    options.folder /= fmt::format("{}-{}", name, hash_text(facts));
    options.should_stop = [&hooks] { return hooks.should_stop(); };
    return StageChain::open(std::move(options), stages);
}

Status StageStream::go_on() const {
    return hooks_.should_stop() ? Status(fail(ErrorKind::cancelled, "calibration stopped on request")) : Status(Ok{});
}

Result<const Head*> StageStream::head() {
    if (!head_) {
        WeightSource ends(source_, weights(false), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(head_, Head::load(config_, ends));
    }
    return &*head_;
}

Status StageStream::embed(const Batch& batch, Workspace& work, float* x) {
    if (!embedding_) {
        WeightSource ends(source_, weights(false), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(embedding_, Embedding::load(config_, ends));
    }
    for (const Segment& segment : batch.segments()) {
        NIBBLE_CHECK(embedding_->forward(segment.tokens, x, work));
        x += std::ssize(segment.tokens) * config_.width();
    }
    return Ok{};
}

Result<std::vector<Block>> StageStream::load(const Checkpoint& model, int64_t span, bool quantized) const {
    const auto [first, last] = spans_[static_cast<size_t>(span)];
    std::vector<Block> blocks;
    for (int64_t b = first; b < last; ++b) {
        NIBBLE_TRY(Block block, load_block(model, config_, static_cast<size_t>(b), weights(quantized), pool_));
        blocks.push_back(std::move(block));
    }
    return blocks;
}

Result<bool> StageStream::forward(StageChain::Stage& stage, int64_t piece, const Batch& batch,
                                  std::span<const Block> blocks, Workspace& work, Observer* observer) {
    NIBBLE_CHECK(go_on());
    x_.resize(static_cast<size_t>(batch.rows() * config_.width()));
    if (stage.index() == 0) {
        NIBBLE_CHECK(embed(batch, work, x_.data()));
    } else {
        NIBBLE_TRY(const bool there, stage.read(stage.index() - 1, piece, x_));
        if (!there) return false;
    }
    for (const Block& block : blocks) NIBBLE_CHECK(block.forward(batch, x_.data(), work, observer));
    NIBBLE_CHECK(stage.write(piece, x_));
    return true;
}

GradientStages::GradientStages(const Checkpoint& source, const ModelConfig& config, Options options, ThreadPool& pool,
                               const JobHooks& hooks)
    : source_(source),
      config_(config),
      options_(std::move(options)),
      pool_(pool),
      hooks_(hooks),
      stream_(source, config, options_.compute, pool, hooks),
      blocks_(std::ssize(config.blocks)),
      back_(whole_batches(options_.back, options_.batch_tokens)),
      others_(whole_batches(options_.others, options_.batch_tokens)) {}

Result<std::unique_ptr<GradientStages>> GradientStages::create(const Checkpoint& source, const ModelConfig& config,
                                                               Options options, ThreadPool& pool,
                                                               const JobHooks& hooks) {
    if (block_spans(config).size() != config.blocks.size())
        return fail(ErrorKind::usage,
                    "several ranks cannot divide the gradients of a model whose blocks share keys and values: run one "
                    "process");
    return std::unique_ptr<GradientStages>(new GradientStages(source, config, std::move(options), pool, hooks));
}

GradientStages::Place GradientStages::place(int64_t stage) const {
    if (stage < blocks_) return {Kind::forward, stage};
    if (stage == blocks_) return {Kind::head};
    return {Kind::backward, 2 * blocks_ - stage};
}

Status GradientStages::run(StageChain& chain, const Callbacks& callbacks, std::string_view phase) {
    int64_t rows = 0;
    for (const BatchPiece& piece : back_) rows += 2 * piece.batch.rows();
    for (const BatchPiece& piece : others_) rows += piece.batch.rows();
    meter_ = std::make_unique<ProgressMeter>(hooks_, phase, rows * blocks_, token_layers);
    NIBBLE_CHECK(chain.run([&](StageChain::Stage& stage) -> Result<bool> {
        const Place here = place(stage.index());
        // The results of the forward pass are read by the backward pass.
        if (here.kind == Kind::backward) {
            NIBBLE_TRY(const bool complete, stage.wait_for(here.block));
            if (!complete) return false;
        }
        NIBBLE_TRY(auto work, Workspace::create(options_.compute, {}, pool_));
        if (options_.bytes) work.bytes = std::make_unique<ByteProducts>(*options_.bytes);
        NIBBLE_TRY(Observer * observer, callbacks.begin(stage, here));
        Result<bool> whole = false;
        switch (here.kind) {
            case Kind::forward:
                whole = forward(stage, here.block, work, observer);
                break;
            case Kind::head:
                whole = turn(stage, work, observer);
                break;
            case Kind::backward:
                whole = backward(stage, here.block, work, observer);
                break;
        }
        if (!whole.ok() || !*whole) return whole;
        NIBBLE_CHECK(callbacks.end(stage, here));
        return true;
    }));
    meter_->finish();
    return Ok{};
}

Result<bool> GradientStages::forward(StageChain::Stage& stage, int64_t block, Workspace& work, Observer* observer) {
    NIBBLE_TRY(const std::vector<Block> blocks, stream_.load(source_, block, false));
    int64_t piece = 0;
    for (const auto* batches : {&back_, &others_})
        for (const BatchPiece& batch : *batches) {
            NIBBLE_TRY(const bool there, stream_.forward(stage, piece++, batch.batch, blocks, work, observer));
            if (!there) return false;
            meter_->add(batch.batch.rows(), fmt::format("layer {} of {}, forward", block + 1, blocks_));
        }
    // The pieces of the texts that go back are read once more.
    if (block > 0) stage.free_later(block - 1, kept(), pieces());
    return true;
}

Result<bool> GradientStages::turn(StageChain::Stage& stage, Workspace& work, Observer* observer) {
    int64_t tokens = 0;
    for (const BatchPiece& piece : back_) tokens += piece.batch.rows();
    std::vector<float> x(static_cast<size_t>(tokens * config_.hidden)), gradient(x.size());
    const auto rows_of = [&](std::vector<float>& from, const BatchPiece& piece) {
        return std::span(from).subspan(static_cast<size_t>(piece.row * config_.hidden),
                                       static_cast<size_t>(piece.batch.rows() * config_.hidden));
    };
    for (int64_t i = 0; i < kept(); ++i) {
        NIBBLE_TRY(const bool there, stage.read(stage.index() - 1, i, rows_of(x, back_[static_cast<size_t>(i)])));
        if (!there) return false;
    }
    NIBBLE_CHECK(stream_.go_on());
    NIBBLE_TRY(const Head* head, stream_.head());
    const Head::Labels labels{.given = {}, .sampled = PhiloxStream{options_.seed, 0}, .scale = 1.0f};
    NIBBLE_CHECK(head->backward(x.data(), tokens, labels, gradient.data(), work, observer, nullptr));
    for (int64_t i = 0; i < kept(); ++i) NIBBLE_CHECK(stage.write(i, rows_of(gradient, back_[static_cast<size_t>(i)])));
    stage.free_later(stage.index() - 1, 0, pieces());
    return true;
}

Result<bool> GradientStages::backward(StageChain::Stage& stage, int64_t block, Workspace& work, Observer* observer) {
    NIBBLE_TRY(const std::vector<Block> blocks, stream_.load(source_, block, false));
    std::vector<float> x, gradient;
    for (int64_t i = 0; i < kept(); ++i) {
        NIBBLE_CHECK(stream_.go_on());
        const Batch& batch = back_[static_cast<size_t>(i)].batch;
        x.resize(static_cast<size_t>(batch.rows() * config_.hidden));
        gradient.resize(x.size());
        NIBBLE_TRY(const bool there, stage.read(stage.index() - 1, i, gradient));
        if (!there) return false;
        if (block == 0) {
            NIBBLE_CHECK(stream_.embed(batch, work, x.data()));
        } else {
            NIBBLE_TRY(const bool input, stage.read(block - 1, i, x));
            if (!input) return false;
        }
        NIBBLE_CHECK(blocks[0].backward(batch, x.data(), gradient.data(), work, observer, nullptr));
        if (block > 0) NIBBLE_CHECK(stage.write(i, gradient));
        meter_->add(batch.rows(), fmt::format("layer {} of {}, backward", block + 1, blocks_));
    }
    stage.free_later(stage.index() - 1, 0, kept());
    if (block > 0) stage.free_later(block - 1, 0, kept());
    return true;
}

}  // namespace nibble
