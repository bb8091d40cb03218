#include "model/cpu/model.h"

#include "base/map_faults.h"
#include "model/cpu/widen.h"

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
    return p;
}

}  // namespace

Result<ModelConfig> model_config(const Checkpoint& checkpoint) {
    const auto tensors = checkpoint.tensors();
    for (const std::string_view root : {"language_model.model.", "model.language_model."})
        if (std::ranges::any_of(tensors, [&](const CheckpointTensor& t) { return t.name.starts_with(root); }))
            return model_config(checkpoint.config(), root);
    const bool text = std::ranges::any_of(tensors, [](const auto& t) { return t.name.starts_with("model."); });
    return model_config(checkpoint.config(), text ? "model." : "");
}

Result<Embedding> Embedding::load(const ModelConfig& config, WeightSource& weights) {
    Embedding e;
    e.checkpoint_ = &weights.checkpoint();
    NIBBLE_TRY(e.tensor_, weights.find(config.embedding, config.vocab, config.hidden));
    NIBBLE_TRY(e.decoder_, select_quantize_kernels());
    e.vocab_ = config.vocab, e.hidden_ = config.hidden, e.scale_ = config.embedding_scale;
    return e;
}

Status Embedding::forward(std::span<const int32_t> tokens, float* x, Workspace& work) const {
    const CheckpointTensor& t = checkpoint_->tensors()[tensor_];
    Matrix plain;
    QuantMatrix quantized;
    for (const int32_t token : tokens) {
        if (token < 0 || token >= vocab_) return fail("token id {} is not in the vocabulary of {}", token, vocab_);
        if (t.quantized()) {
            // Tiles come whole.
            const int64_t begin = t.format == Format::fp8_block128 ? token / 128 * 128 : token;
            NIBBLE_TRY(const QuantView view, checkpoint_->read_quant(tensor_, begin, token - begin + 1, quantized));
            const Arena::Scope scope(work.arena);
            float* rows = work.arena.floats(view.rows * hidden_);
            decoder_->decode(view, rows);
            std::copy_n(rows + (token - begin) * hidden_, hidden_, x);
        } else {
            NIBBLE_TRY(const MatrixView view, checkpoint_->read_plain(tensor_, token, 1, plain));
            widen(view, x);
        }
        if (scale_ != 1.0f)
            for (int64_t i = 0; i < hidden_; ++i) x[i] *= scale_;
        if (work.bf16()) work.elementwise->round_bf16(x, hidden_);
        if (work.elementwise->first_nonfinite(x, hidden_) >= 0)
            return fail("tensor '{}': row {} (token {}) is not finite", t.name, token, token);
        x += hidden_;
    }
    return Ok{};
}

Result<Head> Head::load(const ModelConfig& config, WeightSource& weights) {
    Head h;
    h.eps_ = config.norm_eps;
    h.norm_name_ = config.norm;
    NIBBLE_TRY(h.norm_, weights.norm(config, config.norm, config.hidden));
    std::string module = config.head;
    if (module.ends_with(".weight")) module.resize(module.size() - 7);
    NIBBLE_TRY(h.linear_, weights.linear(module, config.vocab, config.hidden, false));
    if (config.head == config.embedding) h.linear_.name = "lm_head";
    return h;
}

Status Head::forward(const float* x, int64_t rows, float* logits, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t n = linear_.cols;
    float* normed = work.arena.floats(rows * n);
    for (int64_t i = 0; i < rows; ++i)
        work.elementwise->rms_norm(x + i * n, norm_.data(), n, eps_, work.bf16(), normed + i * n);
    return linear_.forward(normed, rows, logits, work, observer);
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
    model.config_ = std::make_unique<ModelConfig>(std::move(config));
    NIBBLE_TRY(Workspace work, Workspace::create(options.compute, options.kernels, pool, options.sums));
    model.work_ = std::make_unique<Workspace>(std::move(work));
    NIBBLE_TRY(model.parts_, load_parts(*model.config_, *checkpoint, options, pool, WeightSource::Mode::load));
    model.checkpoint_ = std::move(checkpoint);
    model.options_ = options;
    return model;
}

Status Model::renew() {
    WeightSource weights(*checkpoint_, options_, *work_->pool, WeightSource::Mode::load);
    NIBBLE_TRY(parts_, read_parts(*config_, weights));
    if (work_->bytes) work_->bytes->forget();
    return Ok{};
}

std::vector<StateLayout> Model::states() const {
    std::vector<StateLayout> layouts;
    for (const Block& block : parts_.blocks) layouts.push_back(block.state());
    return layouts;
}

Result<std::unique_ptr<KvPool>> Model::make_pool(int64_t tokens, int64_t sequences) const {
    return KvPool::create(states(), tokens, sequences, host_state_memory);
}

Result<int64_t> Model::free_bytes(int64_t, int64_t) const {
    std::ifstream file("/proc/meminfo");
    for (std::string name, rest; file >> name && std::getline(file, rest);)
        if (name == "MemAvailable:") return std::strtoll(rest.c_str(), nullptr, 10) * 1024 / 3;
    return fail("/proc/meminfo does not say how much memory is free; give --kv-memory");
}

Status Model::forward(const Batch& batch, std::span<float> logits, Observer* observer) const {
    return run(batch, logits, observer, true);
}

Status Model::evaluate(const Batch& batch, std::span<float> logits) const { return run(batch, logits, nullptr, false); }

Status Model::run(const Batch& batch, std::span<float> logits, Observer* observer, bool look) const {
    Workspace& work = *work_;
    const int64_t rows = batch.rows(), n = config_->hidden;
    NIBBLE_CHECK(check(batch, std::ssize(logits), config_->vocab));
    const auto segments = batch.segments();
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
        NIBBLE_CHECK(check_maps());  // weights may still lie in the files
        const int64_t bad = look ? work.elementwise->first_nonfinite(logits.data(), std::ssize(logits)) : -1;
        if (bad >= 0)
            return fail("lm_head: {} in the logits of wanted row {} (token {})",
                        std::isnan(logits[size_t(bad)]) ? "NaN" : "infinity", bad / config_->vocab,
                        bad % config_->vocab);
    }
    for (const Segment& s : segments)
        if (s.sequence) s.sequence->advance(static_cast<int64_t>(s.tokens.size()));
    return Ok{};
}

Result<Block> load_block(const Checkpoint& checkpoint, const ModelConfig& config, size_t index,
                         const WeightOptions& options, ThreadPool& pool) {
    WeightSource weights(checkpoint, options, pool, WeightSource::Mode::load);
    return Block::load(config, config.blocks[index], weights);
}

}  // namespace nibble
