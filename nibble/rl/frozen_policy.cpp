#include "rl/frozen_policy.h"

#include "model/loss.h"

namespace nibble {

Result<std::shared_ptr<FrozenPolicy>> FrozenPolicy::create(const Checkpoint& from, const TrainPrecision& precision,
                                                           const std::string& kernels, ThreadPool& pool,
                                                           float temperature, const TrainCache& cache,
                                                           RankGroup* ranks) {
    const bool fp32 = precision.recipe == TrainRecipe::fp32;
    NIBBLE_TRY(auto parameters, Parameters::copy(from, fp32 ? DType::f32 : DType::bf16, pool));
    ModelOptions like;
    like.compute = fp32 ? Compute::f32 : Compute::bf16;
    like.kernels = kernels;
    if (cache.format == KvFormat::fp8_page && cache.mirrored) like.kv = KvFormat::fp8_page;
    std::shared_ptr<const Checkpoint> read = parameters;
    std::shared_ptr<CacheScales> scales;
    if (cache.format == KvFormat::fp8 && cache.mirrored) {
        NIBBLE_TRY(scales, cache_scales_of(parameters, cache, pool));
        read = std::make_shared<const CachedCheckpoint>(parameters, scales);
    }
    NIBBLE_TRY(Model model, Model::load(read, like, pool));
    std::shared_ptr<FrozenPolicy> made(new FrozenPolicy(std::move(parameters), std::move(model), temperature));
    made->cache_ = std::move(scales);
    made->ranks_ = ranks;
    // Seed 0: forward products draw no random numbers.
    NIBBLE_TRY(made->products_, HostRecipe::create(made->model_, *made->parameters_, precision, 0, pool));
    made->model_.workspace().products = made->products_.get();
    return made;
}

Status FrozenPolicy::calibrate(std::span<const TrainBatch> rows) {
    if (!cache_ && !products_->calibrates()) return Ok{};
    products_->begin_calibration();
    for (const TrainBatch& row : rows) {
        if (cache_) cache_->begin_row();
        NIBBLE_CHECK(run(row, cache_.get()));
    }
    products_->end_calibration();
    if (!cache_) return Ok{};
    cache_->renew();
    return model_.renew();
}

Status FrozenPolicy::log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) {
    const auto own = [&](const TrainBatch& row, std::span<float> out) -> Status {
        NIBBLE_TRY(const std::vector<float> x, run(row, nullptr));
        return label_log_probs(model_.head(), x.data(), row.labels, {.temperature = temperature_}, out,
                               model_.workspace());
    };
    return row_log_probs(ranks_, rows, own, each);
}

Result<std::vector<float>> FrozenPolicy::run(const TrainBatch& row, Observer* observer) const {
    Workspace& work = model_.workspace();
    std::vector<Segment> documents;
    for (size_t d = 0; d < row.documents.size(); ++d) {
        const int64_t from = row.documents[d], to = d + 1 < row.documents.size() ? row.documents[d + 1] : row.seq;
        documents.push_back(
            {.sequence = nullptr,
             .tokens = std::span(row.tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
             .logits_from = to - from});
    }
    const Batch batch(std::move(documents));
    std::vector<float> x(static_cast<size_t>(row.seq * model_.config().hidden));
    NIBBLE_CHECK(model_.embedding().forward(row.tokens, x.data(), work));
    for (const Block& block : model_.blocks()) NIBBLE_CHECK(block.forward(batch, x.data(), work, observer));
    return x;
}

}  // namespace nibble
