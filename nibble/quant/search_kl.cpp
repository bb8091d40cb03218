#include "base/json_fields.h"
#include "quant/meter.h"
#include "quant/search_scores.h"

#include <algorithm>
#include <unordered_map>

namespace nibble {
namespace {

constexpr int64_t head_rows = 256;  // logits held at once

// KL(p || q), ids rising, in double; rows are log-probabilities.
double divergence_of(const float* log_p, const float* log_q, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(double(log_p[i])) * (double(log_p[i]) - log_q[i]);
    return sum;
}

}  // namespace

Result<KlMeter> KlMeter::create(const Checkpoint& source, TokenSequences sequences, const ScoreOptions& options,
                                ThreadPool& pool) {
    KlMeter meter;
    meter.source_ = &source;
    meter.sequences_ = sequences;
    meter.pool_ = &pool;
    meter.compute_ = options.compute;
    for (const auto& sequence : sequences) meter.tokens_ += static_cast<int64_t>(sequence.size());
    if (meter.tokens_ == 0) return fail("no token to measure a KL divergence on");
    NIBBLE_TRY(ModelConfig config, model_config(source));
    meter.config_ = std::make_unique<ModelConfig>(std::move(config));
    NIBBLE_TRY(Workspace work, Workspace::create(options.compute, {}, pool));
    meter.work_ = std::make_unique<Workspace>(std::move(work));
    WeightSource ends(source, meter.weights(), pool, WeightSource::Mode::load);
    NIBBLE_TRY(meter.head_, Head::load(*meter.config_, ends));
    NIBBLE_CHECK(meter.embed(meter.last_));
    for (size_t b = 0; b < meter.config_->blocks.size(); ++b) {
        NIBBLE_TRY(const Block block, load_block(source, *meter.config_, b, meter.weights(), pool));
        NIBBLE_CHECK(meter.forward(block, meter.last_));
    }
    return meter;
}

Status KlMeter::embed(std::vector<float>& x) {
    x.resize(static_cast<size_t>(tokens_ * config_->hidden));
    WeightSource ends(*source_, weights(), *pool_, WeightSource::Mode::load);
    NIBBLE_TRY(const auto embedding, Embedding::load(*config_, ends));
    int64_t at = 0;
    for (const auto& sequence : sequences_) {
        NIBBLE_CHECK(embedding.forward(sequence, x.data() + at * config_->hidden, *work_));
        at += static_cast<int64_t>(sequence.size());
    }
    return Ok{};
}

Status KlMeter::forward(const Block& block, std::vector<float>& x) {
    int64_t at = 0;
    for (const auto& sequence : sequences_) {
        const Batch batch({{.tokens = sequence, .logits_from = 0}});
        NIBBLE_CHECK(block.forward(batch, x.data() + at * config_->hidden, *work_, nullptr));
        at += batch.rows();
    }
    return Ok{};
}

Result<double> KlMeter::divergence(const std::vector<float>& x, const Head& head) {
    const int64_t vocab = config_->vocab, hidden = config_->hidden;
    std::vector<float> reference(static_cast<size_t>(head_rows * vocab)), changed(reference.size());
    std::vector<double> per_row(static_cast<size_t>(head_rows));
    double sum = 0;
    for (int64_t at = 0; at < tokens_; at += head_rows) {
        const int64_t rows = std::min(head_rows, tokens_ - at);
        NIBBLE_CHECK(head_->forward(last_.data() + at * hidden, rows, reference.data(), *work_, nullptr));
        NIBBLE_CHECK(head.forward(x.data() + at * hidden, rows, changed.data(), *work_, nullptr));
        pool_->parallel_for(rows, [&](int64_t row) {
            float *p = reference.data() + row * vocab, *q = changed.data() + row * vocab;
            work_->elementwise->log_softmax(p, vocab, p);
            work_->elementwise->log_softmax(q, vocab, q);
            per_row[static_cast<size_t>(row)] = divergence_of(p, q, vocab);
        });
        for (int64_t row = 0; row < rows; ++row) sum += per_row[static_cast<size_t>(row)];
    }
    if (!std::isfinite(sum)) return fail("the KL divergence is {}", sum);
    return std::max(0.0, sum / double(tokens_));
}

Result<double> KlMeter::measure(const Checkpoint& changed) {
    std::vector<float> x;
    NIBBLE_CHECK(embed(x));
    for (size_t b = 0; b < config_->blocks.size(); ++b) {
        NIBBLE_TRY(const Block block, load_block(changed, *config_, b, weights(), *pool_));
        NIBBLE_CHECK(forward(block, x));
    }
    WeightSource ends(changed, weights(), *pool_, WeightSource::Mode::load);
    NIBBLE_TRY(const Head head, Head::load(*config_, ends));
    return divergence(x, head);
}

Result<std::vector<std::vector<double>>> KlMeter::measure_groups(const Trials& trials, Journal* journal,
                                                                 const JobHooks& hooks) {
    const SearchSpace& space = trials.space();
    const auto tensors = source_->tensors();
    const size_t blocks = config_->blocks.size();
    std::vector<Block> source_blocks;
    std::unordered_map<std::string, size_t> block_of;  // by tensor; the head comes after the blocks
    for (size_t b = 0; b < blocks; ++b) {
        NIBBLE_TRY(Block block, load_block(*source_, *config_, b, weights(), *pool_));
        for (const Linear* linear : block.linears()) block_of[linear->name + ".weight"] = b;
        source_blocks.push_back(std::move(block));
    }
    block_of[config_->head] = blocks;
    std::vector<std::vector<size_t>> groups_of_block(blocks + 1);
    std::vector<std::vector<double>> values;
    int64_t passes = 0;
    for (size_t g = 0; g < space.groups.size(); ++g) {
        const SearchGroup& group = space.groups[g];
        values.emplace_back(group.candidates.size(), 0.0);
        if (group.candidates.size() < 2) continue;
        const auto at = block_of.find(tensors[group.tensors[0]].name);
        if (at == block_of.end()) return fail("{}: no block of the model runs it; --keep it in one format", group.name);
        const auto kept = journal ? journal->finished(static_cast<int64_t>(g)) : std::nullopt;
        std::vector<double> known;
        if (kept && json_value(*kept, known) && known.size() == values[g].size()) {
            values[g] = std::move(known);
            continue;
        }
        groups_of_block[at->second].push_back(g);
        passes += static_cast<int64_t>(group.candidates.size() - 1);
    }
    Meter meter(hooks, "scores", passes * tokens_);
    std::vector<float> before, x;
    NIBBLE_CHECK(embed(before));
    for (size_t b = 0; b <= blocks; ++b) {
        for (const size_t g : groups_of_block[b]) {
            for (size_t i = 0; i < space.groups[g].candidates.size(); ++i) {
                const size_t format = space.groups[g].candidates[i];
                if (format == space.none()) continue;
                if (hooks.should_stop()) return fail("search stopped on request");
                std::vector<size_t> choice(space.groups.size(), space.none());
                choice[g] = format;
                NIBBLE_TRY(const auto trial, trials.of(choice));
                x = before;
                if (b == blocks) {
                    WeightSource ends(*trial, weights(), *pool_, WeightSource::Mode::load);
                    NIBBLE_TRY(const Head head, Head::load(*config_, ends));
                    NIBBLE_TRY(values[g][i], divergence(x, head));
                } else {
                    NIBBLE_TRY(const Block changed, load_block(*trial, *config_, b, weights(), *pool_));
                    NIBBLE_CHECK(forward(changed, x));
                    for (size_t later = b + 1; later < blocks; ++later) NIBBLE_CHECK(forward(source_blocks[later], x));
                    NIBBLE_TRY(values[g][i], divergence(x, *head_));
                }
                meter.add(tokens_, space.groups[g].name);
            }
            if (journal) NIBBLE_CHECK(journal->append(static_cast<int64_t>(g), values[g]));
        }
        if (b < blocks) NIBBLE_CHECK(forward(source_blocks[b], before));
    }
    meter.finish();
    return values;
}

}  // namespace nibble
