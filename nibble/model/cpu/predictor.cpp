#include "model/cpu/predictor.h"

#include "model/weight_source.h"

#include <algorithm>

namespace nibble {

Result<Predictor> Predictor::load(const ModelConfig& config, WeightSource& weights) {
    if (!config.prediction) return fail("config.json declares no layers for multi-token prediction");
    const PredictionConfig& from = *config.prediction;
    const int64_t n = config.hidden;
    Predictor p;
    p.eps_ = config.norm_eps;
    p.hands_on_normed_ = from.hands_on_normed;
    NIBBLE_TRY(p.projection_, weights.linear(from.projection, n, 2 * n, false));
    NIBBLE_TRY(p.embedding_norm_, weights.norm(config, from.embedding_norm, n));
    NIBBLE_TRY(p.hidden_norm_, weights.norm(config, from.hidden_norm, n));
    NIBBLE_TRY(p.norm_, weights.norm(config, from.norm, n));
    for (const BlockConfig& block : from.blocks) {
        NIBBLE_TRY(Block loaded, Block::load(config, block, weights));
        if (loaded.state().floats > 0)
            return fail("{}: Mamba-2 in layers for prediction is not supported", block.prefix);
        p.blocks_.push_back(std::move(loaded));
    }
    return p;
}

Status Predictor::forward(const Batch& batch, const float* hidden, const Embedding& embedding, const Output& out,
                          Workspace& work) const {
    const ElementwiseKernels& k = *work.elementwise;
    const int64_t rows = batch.rows(), n = projection_.rows;
    const Arena::Scope scope(work.arena);
    float* both = work.arena.floats(rows * 2 * n);
    float* x = work.arena.floats(rows * n);
    for (size_t s = 0; s < batch.segments().size(); ++s)
        NIBBLE_CHECK(embedding.forward(batch.segments()[s].tokens, x + batch.row(s) * n, work));
    work.parallel_rows(rows, 2 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            k.rms_norm(x + i * n, embedding_norm_.data(), n, eps_, work.bf16(), both + 2 * i * n);
            k.rms_norm(hidden + i * n, hidden_norm_.data(), n, eps_, work.bf16(), both + (2 * i + 1) * n);
        }
    });
    NIBBLE_CHECK(projection_.forward(both, rows, x, work, nullptr));

    // After the last block with K and V, only the wanted rows are computed.
    size_t keeping = blocks_.size();
    while (keeping > 0 && blocks_[keeping - 1].state().page_bytes == 0) --keeping;
    for (size_t b = 0; b < keeping; ++b) NIBBLE_CHECK(blocks_[b].forward(batch, x, work, nullptr));
    std::vector<Segment> wanted;
    float* to = out.hidden;
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const auto tokens = segment.tokens.subspan(
            static_cast<size_t>(std::clamp<int64_t>(segment.logits_from, 0, std::ssize(segment.tokens))));
        if (tokens.empty()) continue;
        const int64_t skipped = std::ssize(segment.tokens) - std::ssize(tokens);
        to = std::copy_n(x + (batch.row(s) + skipped) * n, std::ssize(tokens) * n, to);
        wanted.push_back({.sequence = segment.sequence, .tokens = tokens, .position = batch.position(s) + skipped});
    }
    if (wanted.empty()) return Ok{};
    const Batch rest(std::move(wanted));
    for (size_t b = keeping; b < blocks_.size(); ++b) NIBBLE_CHECK(blocks_[b].forward(rest, out.hidden, work, nullptr));
    for (int64_t i = 0; i < rest.rows(); ++i)
        k.rms_norm(out.hidden + i * n, norm_.data(), n, eps_, work.bf16(), out.normed + i * n);
    if (hands_on_normed_) std::copy_n(out.normed, rest.rows() * n, out.hidden);
    return Ok{};
}

}  // namespace nibble
