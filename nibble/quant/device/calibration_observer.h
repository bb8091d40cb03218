// Collects on the GPU, where the activations are, the statistics that CalibrationObserver collects on the CPU.
//
// Ranges are exact functions of the activations (maxima and integer counts). Second moments are sums in the order of
// kernels/observe_cuda.h: the same for the same texts and batches. Activations are DeviceModel's. They differ from the
// CPU's, because sums between roundings to BF16 have another order (about 1 % of a maximum), but do not depend on the
// batch.
#pragma once

#include "kernels/observe_cuda.h"
#include "model/device/layerwise.h"
#include "quant/block_solver.h"
#include "quant/calibrate.h"

#include <map>

namespace nibble {

class DeviceCalibrationObserver : public DeviceObserver {
public:
    // `seen` has an entry for every range to collect; null: none. `solves`: collect statistics of linears whose solver
    // reads no gradients, except those that `done` holds. All arguments must outlive the object.
    DeviceCalibrationObserver(const Plan& plan, const CalibrationOptions& options, Calibration* seen, bool solves,
                              const StatisticsStore& done, DeviceLayerwise& layerwise);
    // GPTQ's moments become those of the quantized rows (quantized_inputs.h).
    void see_quantized(const ActivationScales& scales) { scales_ = &scales; }

    // Completes the values of a block: ranges are written to `seen`, statistics passed to the solver (may be null).
    Status end_block(BlockSolver* solver);

    Status input(std::span<const std::string> linears, const std::byte* x, int64_t rows, int64_t cols,
                 const Stream& stream) override;
    Status expert_inputs(std::span<const std::vector<std::string>> linears, const std::byte* x, int64_t rows,
                         int64_t cols, const int32_t* begin, const Stream& stream) override;
    Status kv(const std::string& prefix, const cuda::KvCache& cache, const int64_t* slots, int64_t rows,
              const Stream& stream) override;
    bool every_expert() const override { return options_->all_experts; }

private:
    // Reuses device allocations of the same size.
    class Memory {
    public:
        explicit Memory(int device) : device_(device) {}
        Result<std::byte*> take(int64_t bytes);
        void give_all();  // returns all allocations; queued work must no longer use them

    private:
        struct Piece {
            DeviceArena arena;
            std::byte* data;
        };
        int device_;
        std::multimap<int64_t, Piece> free_, taken_;
    };
    struct Place {                                // the input of linears, K or V, or the inputs of experts
        std::vector<std::vector<Range*>> ranges;  // [experts]: ranges of all linears with this input
        int64_t cols = 0;
        cuda::RangeSums* sums = nullptr;  // [experts]
        uint64_t* counts = nullptr;       // [experts][range_buckets]; null: only maxima are collected
    };
    struct Moments {
        std::vector<const PlanEntry*> entries;  // entries that read the rows
        bool local = false;
        std::optional<float> scale;  // scale of inputs that are quantized to NVFP4 first
        int64_t n = 0, tokens = 0;
        double* sums = nullptr;
    };
    std::vector<Range*> watched(std::span<const std::string> linears);
    Result<Place*> place(const std::string& name, std::vector<std::vector<Range*>> ranges, int64_t cols);
    Status observe(const std::string& name, Range* range, const std::byte* x, int64_t rows, int64_t cols,
                   const Stream& stream);
    Result<Moments*> moments(const PlanEntry& entry, bool local, std::optional<float> scale);
    Status add_statistics(std::span<const std::string> linears, const std::byte* x, int64_t rows, const Stream& stream);
    Status add(Moments& m, const std::byte* x, int64_t rows, const Stream& stream);
    Status fetch_ranges();
    Status fetch_moments(BlockSolver& solver);
    Result<std::byte*> scratch(int64_t bytes);

    const Plan* plan_;
    const CalibrationOptions* options_;
    Calibration* seen_;
    DeviceLayerwise* layerwise_;
    const ActivationScales* scales_ = nullptr;
    std::map<std::string_view, const PlanEntry*> solved_;  // by module
    Memory memory_;
    std::map<std::string, Place, std::less<>> places_;
    std::map<std::string, Moments, std::less<>> open_;  // by the module of the first entry; local moments have the
                                                        // prefix "local "
    std::optional<DeviceArena> scratch_;
};

}  // namespace nibble
