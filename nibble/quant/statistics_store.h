// What calibration solved, waiting to be written: codes and scales by linear; on disk as well where it is to survive a
// kill.
#pragma once

#include "quant/calibration_keep.h"
#include "quant/output_error.h"
#include "quant/solve.h"

#include <map>
#include <string>

namespace nibble {

class StatisticsStore : public StatisticsSource {
public:
    // `identity`: everything that decides a bit of what will be put.
    explicit StatisticsStore(std::string identity) : identity_(std::move(identity)) {}

    // Takes over what `keep` holds; put() adds to it from now on. `keep` lives until
    // keep_no_more().
    Status keep_in(CalibrationKeep& keep);
    void keep_no_more() { keep_ = nullptr; }
    Status put(const std::string& module, Solution solution);
    bool holds(const std::string& module) const { return solved_.contains(module); }
    Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) override;
    std::string identity() const override { return identity_; }
    // Of all that was put or taken over and measured, by module.
    std::vector<LayerOutputError> output_errors() const;

private:
    std::string identity_;
    CalibrationKeep* keep_ = nullptr;
    std::map<std::string, std::shared_ptr<const LinearStatistics>, std::less<>> solved_;
};

}  // namespace nibble
