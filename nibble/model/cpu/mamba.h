// Mamba-2 (Dao and Gu 2024), as nemotron_h, granitemoehybrid and falcon_h1 compute it:
//   z | xBC | dt = scales * in_proj(u);  xBC = silu(conv(xBC));  dt = max(softplus(dt + dt_bias), dt_min)
//   y = scan(x, B, C, exp(-exp(A_log) dt), dt, D)                                     (kernels/ssm.h)
//   out = out_proj(w * rms(y * silu(z)))            the gate first, then RMS over each of the groups;
//                                                   MambaConfig::Norm has other orders
// dt_min is 0, as in the published code and serving engines; transformers' PyTorch path clamps at time_step_min.
// softplus and the decay are computed in FP64 and rounded to FP32.
#pragma once

#include "kernels/ssm.h"
#include "model/cpu/block.h"
#include "model/cpu/convolution.h"
#include "model/weight_source.h"

namespace nibble {

class Mamba : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const std::string& prefix, int64_t hidden, float eps, int index,
                                               const MambaConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override { return {&in_proj_, &out_proj_}; }
    std::vector<std::span<const Linear>> units() const override { return {{&in_proj_, 1}, {&out_proj_, 1}}; }
    const MambaConfig& config() const { return config_; }
    SsmStateFormat state_format() const { return state_format_; }
    uint64_t state_seed() const { return state_seed_; }
    const Linear& in_proj() const { return in_proj_; }
    const Linear& out_proj() const { return out_proj_; }
    std::span<const float> conv_weight() const { return conv_.weight(); }
    std::span<const float> conv_bias() const { return conv_.bias(); }
    std::span<const float> a() const { return a_; }
    std::span<const float> d() const { return d_; }
    std::span<const float> dt_bias() const { return dt_bias_; }
    std::span<const float> norm() const { return norm_; }
    // Returns the layout: conv - 1 rows of convolution inputs, oldest first, then the SSM state in
    // WeightOptions::ssm_state.
    StateLayout state() const override;

private:
    int64_t inner() const { return config_.inner(); }
    int64_t channels() const { return config_.channels(); }
    // The inputs of the scan, computed from the outputs of in_proj, in the arena.
    struct Inputs {
        float* projected;   // [rows, in_proj.rows]
        float* raw;         // [rows, channels]: the convolution's sums, before silu
        float* xbc;         // [rows, channels]
        float *dt, *decay;  // [rows, heads]
    };
    Result<Inputs> inputs(const Batch& batch, const float* x, Workspace& work, Observer* observer) const;
    SsmScan scan(const Inputs& in, int64_t row, int64_t tokens, float* y) const;
    void run_scan(const Batch& batch, const Inputs& in, float* y, Workspace& work) const;
    // Applies gate and norm in the order of config().norm. Writes `between` [rows, inner], the output of the first, and
    // returns the output of the last [rows, inner]: `out`, or `between` where there is no norm. `out` may be y.
    const float* gate(const float* projected, const float* y, int64_t rows, float* between, float* out,
                      Workspace& work) const;
    // Writes d_y and the columns z of d_projected from d_out, the gradient of what gate() returns.
    Status gate_backward(const Inputs& in, const float* y, const float* between, const float* d_out, int64_t rows,
                         float* d_y, float* d_projected, Workspace& work, GradientSink* sink) const;
    // Multiplies the outputs of in_proj, or their gradients, by config().scales.
    void scale(float* projected, int64_t rows, bool bf16, Workspace& work) const;

    Status scan_backward(const Batch& batch, const Inputs& in, const float* dy, float* d_xbc, float* d_projected,
                         Workspace& work, GradientSink* sink) const;
    Status step_backward(const Inputs& in, int64_t rows, float* d_dt, float* d_decay, float* d_projected,
                         Workspace& work, GradientSink* sink) const;

    std::string prefix_;
    int64_t hidden_ = 0;
    float eps_ = 0;
    int index_ = 0;
    MambaConfig config_;
    SsmStateFormat state_format_ = SsmStateFormat::f32;
    uint64_t state_seed_ = 0;
    Linear in_proj_, out_proj_;
    Convolution conv_;
    std::vector<float> a_, d_, dt_bias_, norm_;  // a = -exp(A_log); norm_ is empty without a norm
    RankColumnsPtr heads_;                       // set if this rank has some heads only, which `config_` describes
};

}  // namespace nibble
