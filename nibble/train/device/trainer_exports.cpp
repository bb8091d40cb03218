// Exports of DeviceTrainer, and adapters: their trainer and the merged model.
#include "train/device/device_trainer.h"
#include "train/lora.h"
#include "train/lora_export.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceTrainer>> DeviceTrainer::create_adapters(std::shared_ptr<const Checkpoint> base,
                                                                      const DeviceTrainerOptions& options,
                                                                      ThreadPool& pool) {
    if (options.train.cache.format != KvFormat::none) return fail("adapters are trained with a 16-bit KV cache only");
    if (options.sharding == Sharding::all)
        return fail("parallel.shard: all: every GPU has all frozen weights of an adapter run; use shard: states");
    if (options.generation || options.reference) return fail("adapters cannot be trained with rollouts");
    NIBBLE_TRY(const ModelConfig config, model_config(*base));
    NIBBLE_CHECK(DeviceAdapters::check(options.train.lora));
    NIBBLE_TRY(DeviceInfo device, open(options));
    const WeightOptions like{.kv = KvFormat::none};
    NIBBLE_TRY(ModelParts parts, load_parts(config, *base, like, pool, WeightSource::Mode::outline));
    NIBBLE_TRY(auto adapters, lora_parameters(parts.blocks, options.train.lora, DType::bf16, options.train.seed, pool));
    NIBBLE_TRY(TrainWeights weights, TrainWeights::plan_adapters(adapters, base, options.train.lora, config,
                                                                 std::move(parts), options.train.seed, pool));
    NIBBLE_TRY(auto made, make(std::move(adapters), options, std::move(device), std::move(weights), nullptr, pool));
    made->base_ = std::move(base);
    return made;
}

Result<std::shared_ptr<const Checkpoint>> DeviceTrainer::trained() {
    NIBBLE_TRY(const TrainState now, state());
    for (size_t id = 0; id < parameters_->count(); ++id)
        std::ranges::copy(now.masters[id], parameters_->master(id).begin());
    parameters_->publish(pool_);
    std::shared_ptr<const Checkpoint> model = parameters_;
    if (base_) model = std::make_shared<const MergedCheckpoint>(*base_, *parameters_, options_.train.lora);
    return model;
}

// The host makes the codes from the parameters; they equal the GPU's copies.
Result<PhaseWeights> DeviceTrainer::last_weights(int64_t steps) const {
    if (base_) return fail("adapters have no export in the codes of training");
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_TRY(const std::vector<float> scales, weights_.recipe().input_scales());
    return PhaseWeights::make(weights_.outline().blocks, weights_.outline().head, config(), parameters_,
                              options_.train.precision, late_phase(options_.train.precision, steps - 1, steps), scales);
}

Result<Format> DeviceTrainer::codes_format(int64_t steps) {
    NIBBLE_TRY(const PhaseWeights weights, last_weights(steps));
    return TrainedCodes::format_of(weights);
}

Result<std::unique_ptr<TrainedCodes>> DeviceTrainer::trained_codes(int64_t steps) {
    NIBBLE_CHECK(codes_format(steps));
    NIBBLE_CHECK(trained());  // copies the parameters to the host
    NIBBLE_TRY(const PhaseWeights weights, last_weights(steps));
    return TrainedCodes::create(parameters_, weights, pool_);
}

}  // namespace nibble
