// What calibration keeps of a block's activations: ranges for stored scales, second moments for weight solvers.
#pragma once

#include "model/cpu/block.h"
#include "quant/block_solver.h"
#include "quant/calibrate.h"
#include "quant/quantized_inputs.h"
#include "quant/uniform_moments.h"

#include <map>

namespace nibble {

// Solvers that need no gradients have all their statistics after a forward pass. Of the others a forward pass over all
// tokens gives the uniform share of H (UniformMoments, from every second row), and a backward pass over some of them
//   H = sum_t w_t x_t x_t^T + mix mean(w) (tokens back / rows of uniform) uniform,  G = sum_t g_t g_t^T
// A backward pass shows a linear's input and the gradient of its output in two calls, one after the other.
class CalibrationObserver : public Observer {
public:
    // forward: ranges where wanted, statistics of solvers without gradients.
    // uniform: ranges where wanted, uniform moments of solvers with gradients.
    enum class Pass : uint8_t { forward, uniform, backward };

    // `done`: linears it holds at the start are solved and not looked at.
    // `seen` has an entry for every range that is wanted; null: none is. bytes: null, or moments of the passes other
    // than forward are summed in 8-bit integers. All outlive the observer.
    CalibrationObserver(Pass pass, const Plan& plan, const CalibrationOptions& options, const SolverKernels& kernels,
                        const ByteKernels* bytes, ThreadPool& pool, const StatisticsStore& done, Calibration* seen,
                        UniformMoments& uniform);

    // Pass::forward of a model whose inputs are quantized (quantized_inputs.h): GPTQ's Hessians are those of the
    // quantized rows. Both outlive the observer.
    void see_quantized(const Plan& plan, const ActivationScales& scales, const MatmulKernels& kernels) {
        quantized_ = {&plan, &scales, &kernels, {}};
    }

    // What was seen since the last call is complete. Pass::uniform keeps its moments, the others hand their statistics
    // to the solver.
    Status keep_uniform();
    Status end_block(BlockSolver& solver);

    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override;
    Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
              int64_t v_cols) override;
    Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override;
    bool every_expert() const override { return options_->all_experts && pass_ != Pass::backward; }

private:
    struct Open {
        std::optional<LocalGram> local;
        std::optional<Gram> inputs, outputs;
        int64_t tokens = 0;
        double weight = 0;  // sum of token weights
    };
    const PlanEntry* solved(const std::string& module) const;
    Open& open(const PlanEntry& entry);
    Status add_uniform(const PlanEntry& entry, const float* x, int64_t rows);

    const CalibrationOptions* options_;
    const SolverKernels* kernels_;
    const ByteKernels* bytes_;  // of the backward pass; may be null
    ThreadPool* pool_;
    Calibration* seen_;
    UniformMoments* uniform_;
    Pass pass_;
    std::map<std::string_view, const PlanEntry*> solved_;  // by module
    std::map<std::string, Open, std::less<>> open_;
    struct {
        const Plan* plan = nullptr;
        const ActivationScales* scales = nullptr;
        const MatmulKernels* kernels = nullptr;
        std::vector<float> rows;
    } quantized_;
    const float* x_ = nullptr;  // of the linear whose gradient comes next
    struct {
        const float* x = nullptr;
        int64_t rows = 0, cols = 0;
        std::string owner;
    } last_;  // uniform: linears shown the same rows one after the other share their moments
    std::map<std::string, std::string, std::less<>> sharing_;
};

}  // namespace nibble
