#include "quant/kl_runner.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t head_rows = 256;  // rows whose logits are held at once

// Returns KL(p || q), summed over rising ids in double; the rows are log-probabilities.
double divergence_of(const float* log_p, const float* log_q, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(double(log_p[i])) * (double(log_p[i]) - log_q[i]);
    return sum;
}

class CpuKlRunner : public KlRunner {
public:
    CpuKlRunner(const Checkpoint& source, TokenSequences sequences, Compute compute, ThreadPool& pool,
                ModelConfig config, Workspace work)
        : source_(source),
          sequences_(sequences),
          compute_(compute),
          pool_(pool),
          config_(std::move(config)),
          work_(std::move(work)) {
        for (const auto& sequence : sequences) tokens_ += static_cast<int64_t>(sequence.size());
    }

    // Computes the source's hidden states.
    Status prepare() {
        NIBBLE_TRY(head_, load_head(source_));
        NIBBLE_CHECK(embed(last_));
        for (size_t b = 0; b < config_.blocks.size(); ++b) {
            NIBBLE_TRY(const Block block, load_block(source_, config_, b, weights(), pool_));
            NIBBLE_CHECK(forward(block, last_));
        }
        return Ok{};
    }

    Result<double> measure(const Checkpoint& changed) override {
        NIBBLE_CHECK(embed(x_));
        for (size_t b = 0; b < config_.blocks.size(); ++b) {
            NIBBLE_TRY(const Block block, load_block(changed, config_, b, weights(), pool_));
            NIBBLE_CHECK(forward(block, x_));
        }
        NIBBLE_TRY(const Head head, load_head(changed));
        return divergence(x_, head);
    }

    Status begin() override {
        for (size_t b = source_blocks_.size(); b < config_.blocks.size(); ++b) {
            NIBBLE_TRY(Block block, load_block(source_, config_, b, weights(), pool_));
            source_blocks_.push_back(std::move(block));
        }
        return embed(before_);
    }

    Result<double> measure_block(const Checkpoint& changed, size_t block) override {
        if (block == config_.blocks.size()) {
            NIBBLE_TRY(const Head head, load_head(changed));
            return divergence(before_, head);
        }
        x_ = before_;
        NIBBLE_TRY(const Block one, load_block(changed, config_, block, weights(), pool_));
        NIBBLE_CHECK(forward(one, x_));
        for (size_t later = block + 1; later < source_blocks_.size(); ++later)
            NIBBLE_CHECK(forward(source_blocks_[later], x_));
        return divergence(x_, *head_);
    }

    Status advance(size_t block) override { return forward(source_blocks_[block], before_); }

private:
    WeightOptions weights() const { return {.compute = compute_, .kv = KvFormat::none}; }

    Result<Head> load_head(const Checkpoint& from) {
        WeightSource ends(from, weights(), pool_, WeightSource::Mode::load);
        return Head::load(config_, ends);
    }

    Status embed(std::vector<float>& x) {
        x.resize(static_cast<size_t>(tokens_ * config_.width()));
        WeightSource ends(source_, weights(), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(const auto embedding, Embedding::load(config_, ends));
        int64_t at = 0;
        for (const auto& sequence : sequences_) {
            NIBBLE_CHECK(embedding.forward(sequence, x.data() + at * config_.width(), work_));
            at += static_cast<int64_t>(sequence.size());
        }
        return Ok{};
    }

    Status forward(const Block& block, std::vector<float>& x) {
        int64_t at = 0;
        for (const auto& sequence : sequences_) {
            const Batch batch({{.tokens = sequence, .logits_from = 0}});
            NIBBLE_CHECK(block.forward(batch, x.data() + at * config_.width(), work_, nullptr));
            at += batch.rows();
        }
        return Ok{};
    }

    Result<double> divergence(const std::vector<float>& x, const Head& head) {
        const int64_t vocab = config_.vocab, hidden = config_.width();
        std::vector<float> reference(static_cast<size_t>(head_rows * vocab)), changed(reference.size());
        std::vector<double> per_row(static_cast<size_t>(head_rows));
        double sum = 0;
        for (int64_t at = 0; at < tokens_; at += head_rows) {
            const int64_t rows = std::min(head_rows, tokens_ - at);
            NIBBLE_CHECK(head_->forward(last_.data() + at * hidden, rows, reference.data(), work_, nullptr));
            NIBBLE_CHECK(head.forward(x.data() + at * hidden, rows, changed.data(), work_, nullptr));
            pool_.parallel_for(rows, [&](int64_t row) {
                float *p = reference.data() + row * vocab, *q = changed.data() + row * vocab;
                work_.elementwise->log_softmax(p, vocab, p);
                work_.elementwise->log_softmax(q, vocab, q);
                per_row[static_cast<size_t>(row)] = divergence_of(p, q, vocab);
            });
            for (int64_t row = 0; row < rows; ++row) sum += per_row[static_cast<size_t>(row)];
        }
        return sum;
    }

    const Checkpoint& source_;
    const TokenSequences sequences_;
    const Compute compute_;
    ThreadPool& pool_;
    const ModelConfig config_;
    Workspace work_;
    int64_t tokens_ = 0;
    std::optional<Head> head_;
    std::vector<Block> source_blocks_;
    std::vector<float> last_, before_, x_;  // [tokens, hidden]; last_: input of the source's head
};

}  // namespace

Result<std::unique_ptr<KlRunner>> cpu_kl_runner(const Checkpoint& source, TokenSequences sequences, Compute compute,
                                                ThreadPool& pool) {
    NIBBLE_TRY(ModelConfig config, model_config(source));
    NIBBLE_TRY(Workspace work, Workspace::create(compute, {}, pool));
    auto runner = std::make_unique<CpuKlRunner>(source, sequences, compute, pool, std::move(config), std::move(work));
    NIBBLE_CHECK(runner->prepare());
    return std::unique_ptr<KlRunner>(std::move(runner));
}

}  // namespace nibble
