// Collects a block's calibration statistics: ranges for stored scales, second moments for weight solvers.
#pragma once

#include "model/cpu/block.h"
#include "quant/block_solver.h"
#include "quant/calibrate.h"
#include "quant/quantized_inputs.h"
#include "quant/uniform_moments.h"

#include <map>

namespace nibble {

// Solvers without gradients have all their statistics after one forward pass. For the others, a forward pass over all
// tokens gives the uniform share of H (UniformMoments, from every second row), and a backward pass over some tokens
// gives
// H = sum_t w_t x_t x_t^T + mix mean(w) (tokens back / rows of uniform) uniform,  G = sum_t g_t g_t^T
// The backward pass shows a linear's input and the gradient of its output in two successive calls.
class CalibrationObserver : public Observer {
public:
    // forward: required ranges, and statistics of solvers without gradients. uniform: required ranges, and uniform
    // moments of solvers with gradients. backward: H and G.
    enum class Pass : uint8_t { forward, uniform, backward };

    // `done`: linears that it holds now are solved already and are ignored. `seen` has an entry for every range to
    // collect; null: none. bytes: null, or kernels with which the moments of all passes except `forward` are summed in
    // 8-bit integers. All arguments must outlive the observer.
    CalibrationObserver(Pass pass, const Plan& plan, const CalibrationOptions& options, const SolverKernels& kernels,
                        const ByteKernels* bytes, ThreadPool& pool, const StatisticsStore& done, Calibration* seen,
                        UniformMoments& uniform);

    // For Pass::forward of a model with quantized inputs (quantized_inputs.h): GPTQ's Hessians are then those of the
    // quantized rows. Plan and scales must outlive the observer.
    void see_quantized(const Plan& plan, const ActivationScales& scales, const MatmulKernels& kernels) {
        quantized_ = {&plan, &scales, &kernels, {}};
    }

    // Called when a block is complete. keep_uniform() (Pass::uniform) stores its moments; end_block() (other passes)
    // passes its statistics to the solver.
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
    const ByteKernels* bytes_;  // for the backward pass; may be null
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
    const float* x_ = nullptr;  // input of the linear whose gradient comes next
    struct {
        const float* x = nullptr;
        int64_t rows = 0, cols = 0;
        std::string owner;
    } last_;  // Pass::uniform: successive linears with the same rows share their moments
    std::map<std::string, std::string, std::less<>> sharing_;
};

}  // namespace nibble
