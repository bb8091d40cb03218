#pragma once

#include "kernels/moe_cuda.h"
#include "model/cpu/moe.h"
#include "model/device/mixer.h"
#include "model/device/mlp.h"

namespace nibble {

class DeviceMoe : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const Moe& moe, const std::string& prefix, DeviceWeights& weights);

    // Returns the plan of the input. With one token, the first product of the shared expert (without one, the router's
    // product) computes the norm, and also the router's product.
    Result<InputPlan> plan(const DeviceStep& step) const override;
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    bool waits() const override { return in_.waits() || out_.waits(); }

    // Access to the layers for a trainer, which runs them itself.
    cuda::RouterConfig router() const;
    DeviceLinear& gate() { return gate_; }
    DeviceExperts& in() { return in_; }
    DeviceExperts& out() { return out_; }
    DeviceMlp* shared() { return shared_.get(); }  // null: the layer has no shared expert
    std::optional<DeviceLinear>& to_latent() { return to_latent_; }
    std::optional<DeviceLinear>& from_latent() { return from_latent_; }
    const float* selection_bias() const { return selection_bias_; }
    void use_selection_bias(const float* bias) { selection_bias_ = bias; }

private:
    struct Shared {
        float* y = nullptr;              // the shared expert's output
        const std::byte* mid = nullptr;  // input of its last product, if the experts' first kernel computes that too
    };
    // The rows that the router reads, and those that the experts read; the same, or norms of x of their own
    // (MoeConfig::router_scale, experts_norm).
    struct Inputs {
        DeviceInput router;
        const std::byte* experts = nullptr;
    };
    Result<Inputs> inputs(const DeviceInput& in, DeviceStep& step) const;
    // Chooses the experts, and computes the shared expert's output if there is one. `logits` of the result stays null
    // if route() has run.
    Result<cuda::ExpertChoice> choose(const Inputs& in, Shared& shared, DeviceStep& step) const;
    // Computes the outputs of the experts, [rows * top_k, width] by sorted slot, and of the shared expert. `sum`:
    // receives the combined output instead if combines(), else null.
    Status run_experts(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared, float* y, float* sum,
                       DeviceStep& step) const;
    bool combines(const DeviceStep& step) const;

    // Return the inputs of the experts' first and second product.
    DeviceExpertRows first_rows(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared,
                                const DeviceStep& step) const;
    DeviceExpertRows second_rows(const cuda::ExpertChoice& choice, const std::byte* mid, const Shared& shared,
                                 float* sum, const DeviceStep& step) const;

    // Returns true if the experts' products have a kernel for a single token.
    bool one_token(const DeviceStep& step) const;
    // takes_dense() returns true if, with one token, the experts' first kernel computes the shared expert's last
    // product. chooses_inside() returns true if the experts' kernels choose the experts.
    bool takes_dense(const DeviceStep& step) const;
    bool chooses_inside(const DeviceStep& step) const;

    Result<bool> routes_jointly(const DeviceStep& step) const;

    // Writes mid, the input of the experts' last product.
    Status activated(const DeviceExpertRows& rows, std::byte* mid, DeviceStep& step) const;

    // Passes all rows to the observer for every expert.
    Status show_all(const std::byte* x, DeviceStep& step) const;

    MoeConfig config_;
    int64_t hidden_ = 0, width_ = 0;  // width: columns of the experts' inputs
    // Returns whether the activation is part of the kernels of the experts' first product.
    bool activates() const { return !config_.expert.clamp && in_.activates(config_.expert.gated); }

    DeviceLinear gate_;
    const float* selection_bias_ = nullptr;
    const float* router_scale_ = nullptr;  // [hidden]; null: none, like the others
    const float* experts_norm_ = nullptr;  // [hidden]
    const float* expert_scale_ = nullptr;  // [experts]
    float eps_ = 0;                        // epsilon of the two norms
    std::optional<DeviceLinear> shared_gate_;
    DeviceExperts in_, out_;
    std::unique_ptr<DeviceMlp> shared_;
    std::optional<DeviceLinear> to_latent_, from_latent_;
};

}  // namespace nibble
