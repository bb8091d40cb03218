// Where a text goes through a model and its changed versions for a KL divergence: on the CPU or on a GPU. KlMeter
// (search_scores.h) decides what is run.
#pragma once

#include "quant/search_scores.h"

namespace nibble {

class KlRunner {
public:
    virtual ~KlRunner() = default;
    // Sum over all tokens of KL(source || changed), nats, the inputs quantized where `changed` says so.
    virtual Result<double> measure(const Checkpoint& changed) = 0;
    // From here on all blocks of the source stay in memory, and the text stands before block 0.
    virtual Status begin() = 0;
    // As measure, of a source whose block `block`, before which the text stands (or, behind the last, the head), is the
    // changed one.
    virtual Result<double> measure_block(const Checkpoint& changed, size_t block) = 0;
    // The text goes through block `block` of the source.
    virtual Status advance(size_t block) = 0;
};

// Source and texts outlive the runner. tokens: of all texts.
Result<std::unique_ptr<KlRunner>> cpu_kl_runner(const Checkpoint& source, TokenSequences sequences, Compute compute,
                                                ThreadPool& pool);
// On options.device, rounded to BF16 between operators.
Result<std::unique_ptr<KlRunner>> open_device_kl_runner(const Checkpoint& source, TokenSequences sequences,
                                                        const ScoreOptions& options, ThreadPool& pool);

}  // namespace nibble
