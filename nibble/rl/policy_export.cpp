#include "rl/policy_export.h"

#include "train/cache_scales.h"

namespace nibble {

Result<Format> policy_codes_format(TrainEngine& trainer, const GenerationPolicy* generator, int64_t steps) {
    return generator ? generator->codes_format() : trainer.codes_format(steps);
}

Result<std::shared_ptr<const Checkpoint>> policy_codes(TrainEngine& trainer, GenerationPolicy* generator, int64_t steps,
                                                       ThreadPool& pool) {
    std::shared_ptr<const Checkpoint> codes;
    if (generator) {
        NIBBLE_CHECK(generator->renew());  // no rollout followed the last update
        NIBBLE_TRY(codes, generator->codes(pool));
    } else {
        NIBBLE_TRY(codes, trainer.trained_codes(steps));
    }
    const CacheScales* scales = trainer.cache_scales();
    if (!scales || !scales->ready()) return codes;
    codes = std::make_shared<const CachedCheckpoint>(
        std::move(codes), std::shared_ptr<const CacheScales>(std::shared_ptr<void>(), scales));
    return codes;
}

}  // namespace nibble
