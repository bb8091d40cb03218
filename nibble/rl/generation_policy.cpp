#include "rl/generation_policy.h"

namespace nibble {

Result<std::shared_ptr<GenerationPolicy>> GenerationPolicy::create(std::shared_ptr<Parameters> parameters,
                                                                   TrainEngine& trainer,
                                                                   const TrainPrecision& precision,
                                                                   const TrainCache& cache, const std::string& kernels,
                                                                   ThreadPool& pool) {
    ModelOptions like;
    like.compute = precision.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16;
    like.kernels = kernels;
    if (cache.format == KvFormat::fp8_page) like.kv = KvFormat::fp8_page;
    std::shared_ptr<const Checkpoint> read = parameters;
    if (CacheScales* scales = trainer.cache_scales())
        read = std::make_shared<const CachedCheckpoint>(
            parameters, std::shared_ptr<const CacheScales>(std::shared_ptr<void>(), scales));
    NIBBLE_TRY(Model model, Model::load(read, like, pool));
    std::shared_ptr<GenerationPolicy> made(new GenerationPolicy(parameters));
    made->model_ = std::make_shared<Model>(std::move(model));
    // Seed 0: forward products draw no random numbers.
    NIBBLE_TRY(made->products_, HostRecipe::create(*made->model_, *parameters, precision, 0, pool));
    made->model_->workspace().products = made->products_.get();
    return made;
}

}  // namespace nibble
