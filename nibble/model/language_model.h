// The interface of a language model on any device, used by serving, evaluation and commands. Model computes on the CPU,
// DeviceModel on a GPU. Both keep the contract of docs/architecture.md 4: the bits of a row depend on the weights and
// on the tokens before it, not on other rows or chunking.
#pragma once

#include "architecture/model_config.h"
#include "kernels/sampling.h"
#include "model/batch.h"
#include "model/cpu/workspace.h"
#include "model/sequence.h"

#include <memory>
#include <span>
#include <string>

namespace nibble {

class Observer;  // model/cpu/block.h

class LanguageModel {
public:
    virtual ~LanguageModel() = default;
    virtual const ModelConfig& config() const = 0;

    // Allocates memory for sequences: `tokens` tokens over all sequences, of which at most `sequences` may have a state
    // at the same time. Error: too little memory; the message has the requested bytes.
    virtual Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const = 0;

    // Returns the layout of the state that each block keeps per sequence, in order.
    virtual std::vector<StateLayout> states() const = 0;
    // Returns the bytes that a pool may use. On a device: the free memory minus that of a step of `rows` rows with
    // `wanted` rows of logits. On the host: a third of the free memory.
    virtual Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const = 0;

    // Runs the rows of `batch` through the model and advances its sequences, which must come from a pool of this model.
    // Writes logits [batch.wanted(), vocab]. Too few free pages are an error that changes nothing; after any other
    // error (such as a NaN or infinity, named by layer and token) the batch's sequences are unusable. Not thread-safe:
    // scratch memory is reused between calls.
    virtual Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const = 0;

    // Like forward(), but NaN or infinite logits are accepted. The caller checks each row, because one bad row does not
    // affect the others.
    virtual Status evaluate(const Batch& batch, std::span<float> logits) const { return forward(batch, logits); }

    // Returns true if the model chooses tokens on its device. If so, choose() replaces forward(): it returns a token
    // for every wanted row instead of the logits, the same token that the sampler on the host chooses
    // (kernels/sampling.h). Id -1: the host must choose from the row's logits (logits_of(), until the next step). Id
    // -2: the row holds a NaN or infinity. No request may be deferred or have a mask.
    virtual bool chooses() const { return false; }
    virtual Status choose(const Batch&, std::span<const TokenRequest>, std::span<ChosenToken>) const {
        return fail("this model returns logits, not tokens");
    }
    virtual Status logits_of(int64_t wanted_row, std::span<float>) const {
        return fail("this model keeps no logits of row {}", wanted_row);
    }

    // Returns true if choose() can be split into launch() and collect(), so that a step starts before the tokens of the
    // previous step have reached the host. At most two launches may be in flight. forward(), evaluate() and choose()
    // require that none is. logits_of() refers to the launch that was collected last, until the next launch.
    virtual bool overlaps() const { return false; }
    // Starts a step and advances its sequences. carried [segments] (or empty): the wanted row of the previous launch
    // whose token is the segment's last one; the segment's own value of this token is then ignored. -1: the segment
    // holds the token. If a carried row has id -1 or -2, the token is arbitrary and the caller drops all results that
    // depend on it. `batch` and `requests` are not read after the call. After an error the batch's sequences are
    // unusable.
    virtual Status launch(const Batch&, std::span<const TokenRequest>, std::span<const int64_t> /*carried*/) const {
        return fail("this model returns logits, not tokens");
    }
    // Chooses tokens for rows that the only launch in flight has deferred (TokenRequest::deferred): wanted row rows[i]
    // by requests[i], restricted to its mask. The host can thus compute masks while the device computes logits. A row
    // gets id -1 if its mask allows no token, or if it was deferred and is never chosen. The arguments are not read
    // after the call. Call it before the next launch, which may carry these tokens.
    virtual Status choose_deferred(std::span<const int64_t> /*rows*/, std::span<const TokenRequest>) const {
        return fail("no step is under way");
    }
    // Waits for the older launch in flight and returns its tokens. After an error its sequences are unusable, and the
    // launch is finished.
    virtual Status collect(std::span<ChosenToken>) const { return fail("no step is under way"); }

    // Returns true if layers for multi-token prediction were loaded (WeightOptions::prediction). Their K and V are
    // stored in pages of the sequence like those of other layers: position i belongs to (hidden state i, token i + 1).
    virtual bool predicts() const { return false; }
    // Runs rows through the prediction layers. Each row is a token and the hidden state of the position before it. rows
    // [batch.rows()]: row numbers in the last batch of forward(), evaluate() or choose(), whose hidden states are used;
    // with `again`, row numbers among the wanted rows of the last predict(), whose outputs are used. Segments contain
    // the position of the hidden state. The caller must have reserved the pages. No sequence advances. Chooses a token
    // for every wanted row as choose() does; id < 0: no token (a NaN, or a row that the host would have to choose).
    virtual Status predict(const Batch&, std::span<const int32_t> /*rows*/, bool /*again*/,
                           std::span<const TokenRequest>, std::span<ChosenToken>) const {
        return fail("no prediction layers were loaded");
    }

    // Returns the threads and kernels of the host, for work on logits.
    virtual Workspace& workspace() const = 0;
    // Names the kernels or the device: "avx512", "NVIDIA H200".
    virtual std::string kernels() const = 0;
    // Returns one line about changes to the weights while loading (rounding); empty: they are the checkpoint's.
    virtual std::string note() const { return {}; }
};

}  // namespace nibble
