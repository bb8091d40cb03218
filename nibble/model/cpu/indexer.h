// Chooses the keys of sparse attention (kernels/indexer.h, IndexerConfig). The index keys of a tile lie in the block's
// page of the KV cache, after K and V: forks, shared tiles and rewinds include them.
#pragma once

#include "model/cpu/attend.h"
#include "model/cpu/block.h"
#include "model/cpu/norm.h"
#include "model/weight_source.h"

namespace nibble {

class Indexer {
public:
    // `q_rank`: width of the query's latent, which a weighted indexer reads. `kv`: the block's K and V.
    static Result<Indexer> load(const ModelConfig& model, const BlockConfig& block, const IndexerConfig& config,
                                int64_t q_rank, const KvShape& kv, WeightSource& weights);

    const IndexerConfig& config() const { return config_; }
    std::vector<const Linear*> linears() const;
    // Returns the bytes of index keys in a page.
    int64_t page_bytes() const { return config_.owner < 0 ? shape_.page_bytes() : 0; }

    // Stores the index keys of x [rows, hidden] and returns each row's choice, in memory of the arena. q_latent [rows,
    // q_rank]: of a weighted indexer. Error: the block that owns the choice has not made it.
    Result<KeyChoice> choose(const Batch& batch, const float* x, const float* q_latent, Workspace& work,
                             Observer* observer) const;
    // Error: a text of the batch is longer than the tokens up to which every key is chosen.
    Status check_dense(const Batch& batch) const;

private:
    struct Rows {
        float *q = nullptr, *k = nullptr, *weights = nullptr;
    };
    // `queries`: whether q and weights are needed; an observer needs them always.
    Status project(const Batch& batch, const float* x, const float* q_latent, bool queries, const Rows& rows,
                   Workspace& work, Observer* observer) const;
    void prepare_rows(const Batch& batch, const Rows& rows, bool queries, Workspace& work) const;
    Result<KeyChoice> shared_choice(const Batch& batch, const Workspace& work) const;

    std::string prefix_;
    int index_ = 0;
    int64_t offset_ = 0;  // offset of the index keys in a page
    IndexerConfig config_;
    IndexShape shape_;
    Linear q_, k_, weights_;  // weights_: of a weighted indexer
    Norm q_norm_, k_norm_;    // q_norm_: by block
};

}  // namespace nibble
