// The passes of a calibration, divided over ranks by blocks (parallel/stage_chain.h). The samples flow through the
// blocks in batches; each block is computed, observed and solved by one rank. So the statistics of a block are summed
// in the order of one process, and the results have its bits for any number of ranks.
#pragma once

#include "quant/calibration_keep.h"
#include "quant/calibration_observer.h"
#include "quant/stage_stream.h"

#include <string_view>

namespace nibble {

class RankCalibration {
public:
    struct Subject {
        const Checkpoint& source;
        const ModelConfig& config;
        const Plan& plan;
        std::span<const std::vector<int32_t>> sequences;
        const CalibrationOptions& options;  // has `ranks`
        const SolverKernels& kernels;
        const ByteKernels* bytes;
        ThreadPool& pool;
        const JobHooks& hooks;
        std::string statistics;  // identity of the statistics (StatisticsStore)
        JobIdentity job;         // everything that determines the bits
    };
    // All members of the subject must outlive the object.
    explicit RankCalibration(Subject subject);

    struct Forward {
        std::string_view name;    // name of the pass; differs from that of other passes
        const Checkpoint& model;  // the source, or with_quantized_inputs() of it
        const ActivationScales* quantized = nullptr;
        CalibrationObserver::Pass pass = CalibrationObserver::Pass::forward;
        bool ranges = false, solves = false, head = false;
    };
    // Run a pass with the other ranks, and add the results of all blocks to `seen`.
    Status forward(const Forward& pass, Calibration& seen);
    // `left`: receives the uniform moments of linears that no gradient reached.
    Status backward(bool ranges, Calibration& seen, UniformMoments& left);

private:
    struct Part;
    Result<std::unique_ptr<Part>> part(const StageChain::Stage& stage, bool ranges,
                                       CalibrationObserver::Pass pass) const;
    Status finish(Part& part) const;
    Status collect(const StageChain& chain, int64_t stages, Calibration& seen) const;
    std::string facts() const;
    // Returns whether the stage was completed.
    Result<bool> forward_stage(StageChain::Stage& stage, const Forward& pass, const std::vector<BatchPiece>& batches,
                               ProgressMeter& meter);

    Subject subject_;
    StageStream stream_;
};

}  // namespace nibble
