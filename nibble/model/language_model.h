// A language model that runs, wherever it runs: what serving, evaluation and commands need of one. Model computes on
// the CPU, DeviceModel on a GPU; both keep the contract of docs/architecture.md 4: the bits of a row depend on the
// weights and on the tokens before it, on no other row and on no chunking.
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

    // Memory for sequences: `tokens` tokens in all, over all sequences, of which at most `sequences` have a past at one
    // time. Error: so much memory is not to be had; says how much was asked for.
    virtual Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const = 0;

    // What every block keeps per sequence, in order.
    virtual std::vector<StateLayout> states() const = 0;
    // Bytes that a pool may take: what is free of a device's memory beside a step of `rows` tokens with `wanted` rows
    // of logits; of a host's a third of what is free.
    virtual Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const = 0;

    // Runs the rows of `batch` through everything and advances its sequences, which come from a pool of this model.
    // logits [batch.wanted(), vocab]. Running out of pages is an error that changes nothing; after any other error the
    // batch's sequences are unusable. One call at a time: scratch memory is kept between calls.
    virtual Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const = 0;

    // forward() that leaves it to its caller to look at the logits: a NaN or an infinity is no error, for it is one
    // row's alone.
    virtual Status evaluate(const Batch& batch, std::span<float> logits) const { return forward(batch, logits); }

    // Whether the model chooses tokens where its logits lie. If so, choose() is forward() that hands over a token for
    // every wanted row instead of its logits: the one that the sampler on the host would choose (kernels/sampling.h).
    // A row with id -1 is left to the host: logits_of() gives its logits, until the next call of either. A row with id
    // -2 holds a NaN or an infinity: no token follows it. No request is deferred or has a mask.
    virtual bool chooses() const { return false; }
    virtual Status choose(const Batch&, std::span<const TokenRequest>, std::span<ChosenToken>) const {
        return fail("the model hands over logits, not tokens");
    }
    virtual Status logits_of(int64_t wanted_row, std::span<float>) const {
        return fail("no logits of row {} are kept", wanted_row);
    }

    // Whether choose() comes in two parts, launch() and collect(), so that a step starts before the tokens of the step
    // before it have reached the host. At most two launches are under way; forward(), evaluate() and choose() are for
    // when none is. logits_of() is of the launch that was collected last, until the next launch.
    virtual bool overlaps() const { return false; }
    // Starts a step and advances its sequences. carried [segments, or none]: the wanted row of the launch before whose
    // token is the segment's last one, which the segment itself does not know (what it says there is not used); -1:
    // the segment knows. A carried row with id -1 or -2 gives any token: the caller drops what follows from it.
    // `batch` and `requests` are not read after the call. After an error the batch's sequences are unusable.
    virtual Status launch(const Batch&, std::span<const TokenRequest>, std::span<const int64_t> /*carried*/) const {
        return fail("the model hands over logits, not tokens");
    }
    // Chooses the rows that the launch under way, which is the only one, has deferred (TokenRequest::deferred): wanted
    // row rows[i] by requests[i], from the tokens of its mask. What the masks need of the host is thereby done while
    // the device computes the logits. A mask that allows nothing, and a row that was deferred and is not chosen, has id
    // -1. Nothing is read after the call. Before the next launch, which may carry these tokens on.
    virtual Status choose_deferred(std::span<const int64_t> /*rows*/, std::span<const TokenRequest>) const {
        return fail("no step is under way");
    }
    // Waits for the older of the launches under way. After an error its sequences are unusable, and it is over.
    virtual Status collect(std::span<ChosenToken>) const { return fail("no step is under way"); }

    // Whether layers for multi-token prediction were loaded (WeightOptions::prediction). Their pages of K and V are
    // pages of a sequence like any other's: that of position i is of (hidden state i, token i + 1).
    virtual bool predicts() const { return false; }
    // Runs rows through them: each is a token and the hidden state of the position before it. rows [batch.rows()]: of
    // the batch that forward(), evaluate() or choose() saw last, whose hidden states are meant; `again`: the wanted
    // rows of the last predict(), what it made of them. Segments say their position, that of the hidden state; pages
    // up to it and its row are the caller's to reserve; no sequence advances. A token is chosen for every wanted row as
    // choose() chooses; id < 0: none (NaNs, and what a device leaves to the host).
    virtual Status predict(const Batch&, std::span<const int32_t> /*rows*/, bool /*again*/,
                           std::span<const TokenRequest>, std::span<ChosenToken>) const {
        return fail("no prediction layers were loaded");
    }

    // Threads and row kernels of the host, for what is done with logits.
    virtual Workspace& workspace() const = 0;
    // The kernels and where they run: "avx512", "NVIDIA H200".
    virtual std::string kernels() const = 0;
    // What a user should know about how the weights were loaded, in one line; empty: they are the checkpoint's.
    virtual std::string note() const { return {}; }
};

}  // namespace nibble
