// Statistics of linears that wait for their turn: in memory up to a limit, beyond it in unlinked scratch files.
#pragma once

#include "base/scratch_memory.h"
#include "quant/solve.h"

#include <filesystem>
#include <map>
#include <string>

namespace nibble {

class StatisticsStore : public StatisticsSource {
public:
    // `identity`: everything that decides a bit of what will be put. `memory`: bytes kept beside the scratch files.
    StatisticsStore(std::string identity, int64_t memory, std::filesystem::path scratch)
        : identity_(std::move(identity)), memory_(memory), scratch_(std::move(scratch)) {}

    // Of linear `module`, finished. Errors: no memory, no room in the scratch folder.
    Status put(const std::string& module, const LinearStatistics& statistics);
    bool holds(const std::string& module) const { return stored_.contains(module); }
    Result<std::shared_ptr<const LinearStatistics>> statistics(const PlanEntry& linear) override;
    std::string identity() const override { return identity_; }

private:
    struct StoredGram {
        ScratchMemory sums;
        int64_t n, tokens;
        double weight;
    };
    struct Stored {
        int64_t tokens;
        std::vector<float> local;
        std::optional<StoredGram> inputs, outputs;
    };
    Result<std::optional<StoredGram>> store(const std::optional<Gram>& gram);

    std::string identity_;
    int64_t memory_;
    std::filesystem::path scratch_;
    std::map<std::string, Stored, std::less<>> stored_;
};

}  // namespace nibble
