// Mixture of experts. Rows are gathered per expert. The bits of a row do not depend on the batch: a product's rows are
// independent, and a token's experts are added in ascending order.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/mlp.h"
#include "model/weight_source.h"

#include <optional>

namespace nibble {

class Moe : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const MoeConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    const MoeConfig& config() const { return config_; }
    const Linear& gate() const { return gate_; }
    std::span<const float> selection_bias() const { return selection_bias_; }
    std::span<const std::unique_ptr<Mlp>> experts() const { return experts_; }
    const Mlp* shared() const { return shared_.get(); }
    const std::optional<Linear>& shared_gate() const { return shared_gate_; }
    std::span<const float> router_scale() const { return router_scale_; }  // times hidden^-0.5; may be empty
    std::span<const float> expert_scale() const { return expert_scale_; }  // may be empty
    const Norm& experts_norm() const { return experts_norm_; }             // may be empty
    float eps() const { return eps_; }                                     // epsilon of the router's norm
    const std::optional<Linear>& to_latent() const { return to_latent_; }
    const std::optional<Linear>& from_latent() const { return from_latent_; }

private:
    // The chosen experts of every row, and the rows of every expert in ascending order.
    struct Routing {
        std::vector<float> scores;     // [rows, experts]
        std::vector<int32_t> experts;  // [rows, top_k], ascending
        std::vector<float> weights;    // [rows, top_k]
        std::vector<int64_t> begin;    // [experts + 1]: where each expert's entries begin in rows and slots
        std::vector<int32_t> rows;     // row numbers in the batch
        std::vector<int64_t> slots;    // row * top_k + k
    };
    // The rows that the router reads, and those that experts read (MoeConfig::router_scale, experts_norm); x itself, or
    // memory of the arena.
    const float* router_rows(const float* x, int64_t rows, Workspace& work) const;
    const float* expert_rows(const float* x, int64_t rows, Workspace& work) const;
    Result<Routing> choose(const Batch& batch, const float* x, int64_t rows, Workspace& work, Observer* observer) const;
    // Writes acc [rows, width()] from the experts' input x of the same shape.
    Status run_experts(const Routing& routing, const float* x, float* acc, int64_t rows, Workspace& work,
                       Observer* observer) const;
    // Writes the outputs [n, width()] of the n rows of an expert.
    Status run_expert(const Routing& routing, int expert, const float* x, float* out, Workspace& work,
                      Observer* observer) const;
    // Adds them, times their weights, to acc.
    void add_expert(const Routing& routing, int expert, const float* out, float* acc, Workspace& work) const;
    // Returns the outputs of all experts [rows * top_k, width()], in the order of Routing::rows, on every rank.
    Result<const float*> outputs_of_ranks(const Routing& routing, const float* x, Workspace& work) const;
    // Computes `weights` [rows], the factors of the shared expert's output: sigmoid of the shared gate.
    Status shared_weights(const float* x, int64_t rows, float* weights, Workspace& work, Observer* observer) const;
    // columns of the experts' inputs and outputs
    int64_t width() const { return config_.latent > 0 ? config_.latent : hidden_; }

    MoeConfig config_;
    int64_t hidden_ = 0;
    Linear gate_;
    std::vector<float> selection_bias_;  // may be empty
    std::vector<float> router_scale_;    // times hidden^-0.5; may be empty
    std::vector<float> expert_scale_;    // may be empty
    std::vector<int32_t> hash_table_;    // [vocab, top_k], ascending in each row; may be empty
    Norm experts_norm_;                  // may be empty
    float eps_ = 0;                      // epsilon of the router's norm
    std::vector<std::unique_ptr<Mlp>> experts_;
    std::unique_ptr<Mlp> shared_;                    // may be null
    std::optional<Linear> to_latent_, from_latent_;  // fc1_latent_proj, fc2_latent_proj
    std::optional<Linear> shared_gate_;
    std::shared_ptr<const RankShare> share_;  // set if ranks divide the experts; those of other ranks have no weights
};

}  // namespace nibble
