// The dense feed-forward network; a mixture's experts are the same thing over some of the rows.
#pragma once

#include "model/block.h"

namespace nibble {

class Mlp : public Mixer {
public:
    // Linears PREFIX.gate_proj ... as `config` names them, from and to `hidden`.
    static Result<std::unique_ptr<Mlp>> load(const std::string& prefix, int64_t hidden, const MlpConfig& config,
                                             WeightSource& weights);

    // y [n, hidden] from x [n, hidden].
    Status forward_rows(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                        std::span<const int32_t> batch_rows) const;

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;

private:
    MlpConfig config_;
    LinearStack in_;  // gate and up, or up alone
    Linear out_;
};

}  // namespace nibble
