#pragma once

#include "kernels/moe_cuda.h"
#include "model/cpu/moe.h"
#include "model/device/mixer.h"
#include "model/device/mlp.h"

namespace nibble {

class DeviceMoe : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const Moe& moe, const std::string& prefix, DeviceWeights& weights);

    // One token: the shared expert's first product makes the norm, and the router's product beside its own; without one
    // the router's does.
    Result<InputPlan> plan(const DeviceStep& step) const override;
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    bool waits() const override { return in_.waits() || out_.waits(); }

    // Its parts, for a trainer's pass.
    cuda::RouterConfig router() const;
    DeviceLinear& gate() { return gate_; }
    DeviceExperts& in() { return in_; }
    DeviceExperts& out() { return out_; }
    DeviceMlp* shared() { return shared_.get(); }  // null: none
    std::optional<DeviceLinear>& to_latent() { return to_latent_; }
    std::optional<DeviceLinear>& from_latent() { return from_latent_; }
    const float* selection_bias() const { return selection_bias_; }
    void use_selection_bias(const float* bias) { selection_bias_ = bias; }

private:
    struct Shared {
        float* y = nullptr;              // the shared expert's output
        const std::byte* mid = nullptr;  // what its last product reads, where the experts' first one makes that too
    };
    // The shared expert's output too, where there is one. `logits` stays null where route() has run.
    Result<cuda::ExpertChoice> choose(const DeviceInput& in, Shared& shared, DeviceStep& step) const;
    // The experts' outputs, [rows * top_k, width] by sorted slot, and the shared one's. `sum`: combined there instead
    // where combines(), else null.
    Status run_experts(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared, float* y, float* sum,
                       DeviceStep& step) const;
    bool combines(const DeviceStep& step) const;

    // What the experts read in their first and in their second product.
    DeviceExpertRows first_rows(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared,
                                const DeviceStep& step) const;
    DeviceExpertRows second_rows(const cuda::ExpertChoice& choice, const std::byte* mid, const Shared& shared,
                                 float* sum, const DeviceStep& step) const;

    // Whether the experts' products have the kernel of one token.
    bool one_token(const DeviceStep& step) const;

    Result<bool> routes_beside(const DeviceStep& step) const;

    // What an expert's last product reads.
    Status activated(const DeviceExpertRows& rows, std::byte* mid, DeviceStep& step) const;

    // The observer sees every expert with all rows.
    Status show_all(const std::byte* x, DeviceStep& step) const;

    MoeConfig config_;
    int64_t hidden_ = 0, width_ = 0;  // width: that experts see
    DeviceLinear gate_;
    const float* selection_bias_ = nullptr;
    DeviceExperts in_, out_;
    std::unique_ptr<DeviceMlp> shared_;
    std::optional<DeviceLinear> to_latent_, from_latent_;
};

}  // namespace nibble
