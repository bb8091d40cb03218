// A language model that runs, wherever it runs: what serving, evaluation and commands need of one. Model computes on
// the CPU, DeviceModel on a GPU; both keep the contract of design.md 4: the bits of a row depend on the weights and on
// the tokens before it, on no other row and on no chunking.
#pragma once

#include "model/batch.h"
#include "model/config.h"
#include "model/sequence.h"
#include "model/workspace.h"

#include <memory>
#include <span>
#include <string>

namespace nibble {

class Observer;  // model/block.h

class LanguageModel {
public:
    virtual ~LanguageModel() = default;
    virtual const ModelConfig& config() const = 0;

    // Memory for sequences: `tokens` tokens in all, over all sequences, of which at most `sequences` have a past at one
    // time. Error: so much memory is not to be had; says how much was asked for.
    virtual Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const = 0;

    // Runs the rows of `batch` through everything and advances its sequences, which come from a pool of this model.
    // logits [batch.wanted(), vocab]. Running out of pages is an error that changes nothing; after any other error the
    // batch's sequences are unusable. One call at a time: scratch memory is kept between calls.
    virtual Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const = 0;

    // Threads and row kernels of the host, for what is done with logits.
    virtual Workspace& workspace() const = 0;
    // The kernels and where they run: "avx512", "NVIDIA H200".
    virtual std::string kernels() const = 0;
};

}  // namespace nibble
