// What calibration keeps of a block's activations: ranges for stored scales, second moments for weight solvers.
#pragma once

#include "model/block.h"
#include "quant/calibrate.h"
#include "quant/solve.h"

#include <map>

namespace nibble {

// Forward passes feed ranges and the statistics of solvers that need no gradients; backward passes those of the others.
// A backward pass shows a linear's input and the gradient of its output in two calls, one after the other.
class CalibrationObserver : public Observer {
public:
    enum class Pass : uint8_t { forward, backward };

    // `seen` has an entry for every range that is wanted. All outlive the observer.
    CalibrationObserver(const Plan& plan, const CalibrationOptions& options, const SolverKernels& kernels,
                        ThreadPool& pool, Calibration& seen);

    void begin(Pass pass) { pass_ = pass; }
    // Statistics of the linears seen since the last call are complete: hands them to `store`.
    Status end_block(StatisticsStore& store);

    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override;
    Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
              int64_t v_cols) override;
    Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override;
    bool every_expert() const override { return options_->all_experts && pass_ == Pass::forward; }

private:
    struct Open {
        std::optional<LocalGram> local;
        std::optional<Gram> inputs, outputs;
        int64_t tokens = 0;
    };
    const PlanEntry* solved(const std::string& module) const;
    Open& open(const PlanEntry& entry);

    const CalibrationOptions* options_;
    const SolverKernels* kernels_;
    ThreadPool* pool_;
    Calibration* seen_;
    Pass pass_ = Pass::forward;
    std::map<std::string_view, const PlanEntry*> solved_;  // by module
    std::map<std::string, Open, std::less<>> open_;
    std::vector<float> x_;  // of the linear whose gradient comes next
};

}  // namespace nibble
