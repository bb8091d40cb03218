// Holds the solutions of calibration until they are written: codes and scales per linear, optionally also on disk so
// that they survive a kill.
#pragma once

#include "quant/calibration_keep.h"
#include "quant/output_error.h"
#include "quant/solve.h"

#include <map>
#include <string>

namespace nibble {

class StatisticsStore : public StatisticsSource {
public:
    // `identity`: everything that determines the bits of the solutions.
    explicit StatisticsStore(std::string identity) : identity_(std::move(identity)) {}

    // Takes the solutions that `keep` holds; from now on put() adds to it. `keep` must live until keep_no_more().
    Status keep_in(CalibrationKeep& keep);
    void keep_no_more() { keep_ = nullptr; }
    Status put(const std::string& module, Solution solution);
    bool holds(const std::string& module) const { return solved_.contains(module); }
    Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) override;
    std::string identity() const override { return identity_; }
    // Returns the errors of all measured solutions, by module.
    std::vector<LayerOutputError> output_errors() const;

private:
    std::string identity_;
    CalibrationKeep* keep_ = nullptr;
    std::map<std::string, std::shared_ptr<const LinearStatistics>, std::less<>> solved_;
};

}  // namespace nibble
