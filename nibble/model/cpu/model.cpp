#include "model/cpu/model.h"

#include "architecture/stored_names.h"
#include "base/map_faults.h"
#include "kernels/token_filter.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

namespace nibble {
namespace {

Result<ModelParts> read_parts(const ModelConfig& config, WeightSource& weights) {
    ModelParts p;
    NIBBLE_TRY(p.embedding, Embedding::load(config, weights));
    for (const BlockConfig& block : config.blocks) {
        NIBBLE_TRY(Block loaded, Block::load(config, block, weights));
        p.blocks.push_back(std::move(loaded));
    }
    NIBBLE_TRY(p.head, Head::load(config, weights));
    if (weights.options().prediction) {
        NIBBLE_TRY(p.predictor, Predictor::load(config, weights));
    }
    return p;
}

}  // namespace

Result<ModelConfig> model_config(const Checkpoint& checkpoint) {
    std::vector<std::string_view> names;
    for (const CheckpointTensor& t : checkpoint.tensors()) names.push_back(t.name);
    std::string_view found;
    for (const std::string_view root : {"language_model.model.", "model.language_model.", "model."})
        if (found.empty() && std::ranges::any_of(names, [&](auto name) { return name.starts_with(root); }))
            found = root;
    NIBBLE_TRY(ModelConfig model, model_config(checkpoint.config(), found));
    use_stored_names(model, StoredNames(std::move(names)));
    return model;
}

Result<Head> Head::load(const ModelConfig& config, WeightSource& weights) {
    Head h;
    h.logit_scale_ = config.logit_scale, h.logit_cap_ = config.logit_cap;
    h.norm_name_ = config.norm;
    if (config.hyper) {
        NIBBLE_TRY(h.streams_, HyperConnection::load_head(config, weights));
    }
    NIBBLE_TRY(h.norm_, Norm::load(config, config.norm, config.hidden, weights));
    std::string module = config.head;
    if (module.ends_with(".weight")) module.resize(module.size() - 7);
    const bool tied = config.head == config.embedding;
    NIBBLE_TRY(h.linear_, weights.linear(module, config.vocab, config.hidden, config.head_bias && !tied));
    if (tied) h.linear_.name = "lm_head";
    if (tied && config.head_bias) {
        NIBBLE_TRY(h.linear_.bias, weights.own_vector("lm_head.bias", config.vocab));
    }
    return h;
}

void Head::normalize(const float* x, int64_t rows, float* y, const Workspace& work) const {
    const int64_t n = linear_.cols;
    for (int64_t i = 0; i < rows; ++i) norm_.apply(x + i * n, y + i * n, work);
}

Status Head::forward(const float* x, int64_t rows, float* logits, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    float* normed = work.arena.floats(rows * linear_.cols);
    if (!streams_.empty()) {
        float* joined = work.arena.floats(rows * linear_.cols);
        streams_.collapse(x, rows, joined, work);
        x = joined;
    }
    normalize(x, rows, normed, work);
    return project(normed, rows, logits, work, observer);
}

Status Head::project(const float* normed, int64_t rows, float* logits, Workspace& work, Observer* observer) const {
    NIBBLE_CHECK(linear_.forward(normed, rows, logits, work, observer));
    scale_logits(logits, rows, work, work.bf16());
    return Ok{};
}

void Head::scale_logits(float* logits, int64_t rows, const Workspace& work, bool bf16) const {
    if (logit_scale_ == 1.0f && logit_cap_ == 0) return;
    const int64_t n = linear_.rows;
    work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
        float* of = logits + first * n;
        const int64_t count = (last - first) * n;
        if (logit_scale_ != 1.0f) {
            for (int64_t i = 0; i < count; ++i) of[i] *= logit_scale_;
            if (bf16) work.elementwise->round_bf16(of, count);
        }
        if (logit_cap_ > 0) work.elementwise->soft_cap(of, count, logit_cap_, bf16);
    });
}

Result<ModelParts> load_parts(const ModelConfig& config, const Checkpoint& checkpoint, const WeightOptions& options,
                              ThreadPool& pool, WeightSource::Mode mode) {
    WeightSource looks(checkpoint, options, pool, WeightSource::Mode::check);
    NIBBLE_CHECK(read_parts(config, looks));
    NIBBLE_CHECK(looks.all_used());
    WeightSource reads(checkpoint, options, pool, mode);
    return read_parts(config, reads);
}

Result<Model> Model::load(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options, ThreadPool& pool) {
    Model model;
    NIBBLE_TRY(ModelConfig config, model_config(*checkpoint));
    if (options.most_tokens > 0) choose_rope_factors(config, options.most_tokens);
    model.config_ = std::make_unique<ModelConfig>(std::move(config));
    NIBBLE_TRY(Workspace work, Workspace::create(options.compute, options.kernels, pool, options.sums));
    model.work_ = std::make_unique<Workspace>(std::move(work));
    model.options_ = options;
    if (options.ranks) {
        NIBBLE_TRY(model.options_.share, RankShare::create(*model.config_, *options.ranks));
    }
    NIBBLE_TRY(model.parts_, load_parts(*model.config_, *checkpoint, model.options_, pool, WeightSource::Mode::load));
    model.checkpoint_ = std::move(checkpoint);
    model.options_.stop_requested = nullptr;  // the caller's flag may end before the model does
    return model;
}

Status Model::renew() {
    WeightSource weights(*checkpoint_, options_, *work_->pool, WeightSource::Mode::load);
    NIBBLE_TRY(parts_, read_parts(*config_, weights));
    if (work_->bytes) work_->bytes->forget();
    return Ok{};
}

Status Model::replace(std::shared_ptr<const Checkpoint> checkpoint) {
    NIBBLE_TRY(ModelParts parts, load_parts(*config_, *checkpoint, options_, *work_->pool, WeightSource::Mode::load));
    parts_ = std::move(parts);
    checkpoint_ = std::move(checkpoint);
    if (work_->bytes) work_->bytes->forget();
    return Ok{};
}

void Model::drop_weights() { parts_ = {}; }

std::vector<StateLayout> Model::states() const {
    std::vector<StateLayout> layouts;
    for (const Block& block : parts_.blocks) layouts.push_back(block.state());
    if (parts_.predictor)
        for (const Block& block : parts_.predictor->blocks()) layouts.push_back(block.state());
    return layouts;
}

Result<std::unique_ptr<KvPool>> Model::make_pool(int64_t tokens, int64_t sequences) const {
    return KvPool::create(states(), tokens, sequences, host_state_memory);
}

Result<int64_t> Model::free_bytes(int64_t, int64_t) const {
    std::ifstream file("/proc/meminfo");
    for (std::string name, rest; file >> name && std::getline(file, rest);)
        if (name == "MemAvailable:") return std::strtoll(rest.c_str(), nullptr, 10) * 1024 / 3;
    return fail("/proc/meminfo does not give the free memory; pass --kv-memory");
}

Status Model::forward(const Batch& batch, std::span<float> logits, Observer* observer) const {
    return run(batch, logits, observer, true);
}

Status Model::evaluate(const Batch& batch, std::span<float> logits) const { return run(batch, logits, nullptr, false); }

Status Model::run(const Batch& batch, std::span<float> logits, Observer* observer, bool look) const {
    Workspace& work = *work_;
    const int64_t rows = batch.rows(), n = config_->width();
    NIBBLE_CHECK(check(batch, std::ssize(logits), config_->vocab));
    const auto segments = batch.segments();
    work.shared_pages.clear();
    work.shared_choices.clear();
    for (const Segment& s : segments)
        if (s.sequence) NIBBLE_CHECK(s.sequence->reserve(static_cast<int64_t>(s.tokens.size())));

    const Arena::Scope scope(work.arena);
    float* x = work.arena.floats(rows * n);
    for (size_t s = 0; s < segments.size(); ++s)
        NIBBLE_CHECK(parts_.embedding.forward(segments[s].tokens, x + batch.row(s) * n, work));
    for (const Block& block : parts_.blocks) NIBBLE_CHECK(block.forward(batch, x, work, observer));

    float* wanted = work.arena.floats(batch.wanted() * n);
    int64_t count = 0;
    for (size_t s = 0; s < segments.size(); ++s)
        for (auto i = std::max<int64_t>(segments[s].logits_from, 0); i < std::ssize(segments[s].tokens); ++i)
            std::copy_n(x + (batch.row(s) + i) * n, n, wanted + count++ * n);
    if (count > 0) {
        NIBBLE_CHECK(parts_.head.forward(wanted, count, logits.data(), work, observer));
        NIBBLE_CHECK(check_maps());  // weights may still be read from mapped files
        const int64_t bad = look ? work.elementwise->first_nonfinite(logits.data(), std::ssize(logits)) : -1;
        if (bad >= 0)
            return fail("lm_head: {} in the logits of wanted row {} (token {})",
                        std::isnan(logits[size_t(bad)]) ? "NaN" : "infinity", bad / config_->vocab,
                        bad % config_->vocab);
    }
    if (parts_.predictor) {
        hidden_.resize(static_cast<size_t>(rows * n));
        parts_.head.normalize(x, rows, hidden_.data(), work);
    }
    for (const Segment& s : segments)
        if (s.sequence) s.sequence->advance(static_cast<int64_t>(s.tokens.size()));
    return Ok{};
}

Status Model::predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                      std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const {
    if (!parts_.predictor) return fail("no prediction layers were loaded");
    Workspace& work = *work_;
    const int64_t n = config_->hidden, vocab = config_->vocab, wanted = batch.wanted();
    std::vector<float>& from = again ? predicted_ : hidden_;
    if (std::ssize(rows) != batch.rows() || std::ssize(requests) != wanted || std::ssize(chosen) != wanted)
        return fail("{} rows of hidden states for {} rows of the batch; {} tokens for {} requests", rows.size(),
                    batch.rows(), requests.size(), wanted);
    for (const int32_t row : rows)
        if (row < 0 || row >= std::ssize(from) / n) return fail("the last step has no hidden state {}", row);
    const Arena::Scope scope(work.arena);
    float* hidden = work.arena.floats(batch.rows() * n);
    for (size_t i = 0; i < rows.size(); ++i)
        std::copy_n(from.data() + rows[i] * n, n, hidden + static_cast<int64_t>(i) * n);
    float* normed = work.arena.floats(wanted * n);
    predicted_.resize(static_cast<size_t>(wanted * n));
    NIBBLE_CHECK(parts_.predictor->forward(batch, hidden, parts_.embedding, {predicted_.data(), normed}, work));
    if (wanted == 0) return Ok{};
    float* logits = work.arena.floats(wanted * vocab);
    NIBBLE_CHECK(parts_.head.project(normed, wanted, logits, work, nullptr));
    NIBBLE_CHECK(check_maps());
    work.pool->parallel_for(wanted, [&](int64_t i) {
        const std::span<float> row(logits + i * vocab, static_cast<size_t>(vocab));
        ChosenToken& token = chosen[static_cast<size_t>(i)] = {.id = -2};
        if (work.elementwise->first_nonfinite(row.data(), vocab) >= 0) return;
        TokenFilter filter;
        token.id = filter.choose(row, requests[static_cast<size_t>(i)]);
    });
    return Ok{};
}

Result<Block> load_block(const Checkpoint& checkpoint, const ModelConfig& config, size_t index,
                         const WeightOptions& options, ThreadPool& pool) {
    WeightSource weights(checkpoint, options, pool, WeightSource::Mode::load);
    return Block::load(config, config.blocks[index], weights);
}

}  // namespace nibble
