// Runs a text through a model and its changed versions to measure the KL divergence, on the CPU or on a GPU. KlMeter
// (search_scores.h) decides what is run.
#pragma once

#include "quant/search_scores.h"

namespace nibble {

class KlRunner {
public:
    virtual ~KlRunner() = default;
    // Returns the sum over all tokens of KL(source || changed) in nats; inputs are quantized as `changed` specifies.
    virtual Result<double> measure(const Checkpoint& changed) = 0;
    // Loads all blocks of the source into memory and places the text before block 0.
    virtual Status begin() = 0;
    // Like measure(), for a source in which only block `block` is replaced by that of `changed`. The text must be
    // before this block; after the last block, the head is replaced.
    virtual Result<double> measure_block(const Checkpoint& changed, size_t block) = 0;
    // Runs the text through block `block` of the source.
    virtual Status advance(size_t block) = 0;
};

// Runs on the CPU. Source and texts must outlive the runner.
Result<std::unique_ptr<KlRunner>> cpu_kl_runner(const Checkpoint& source, TokenSequences sequences, Compute compute,
                                                ThreadPool& pool);
// Runs on options.device, rounding to BF16 between operators. Errors: those of DeviceLayerwise::create().
Result<std::unique_ptr<KlRunner>> open_device_kl_runner(const Checkpoint& source, TokenSequences sequences,
                                                        const ScoreOptions& options, ThreadPool& pool);

}  // namespace nibble
