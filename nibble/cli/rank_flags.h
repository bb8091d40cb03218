// --ranks and --gpus: the processes of a command.
#pragma once

#include "run/ranks.h"
#include "tensor/device.h"

#include <CLI/CLI.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace nibble {

class RankFlags {
public:
    // Adds both flags. `text`: the help of --ranks. Returns them.
    std::vector<CLI::Option*> add(CLI::App& command, const std::string& text);

    // --gpus stands for --device cuda.
    void choose_device(std::string& device) const;
    // Finds the place of this process, and its GPU where `device` is one.
    Status choose_gpu(DeviceChoice& device);
    const RankPlace& place() const { return place_; }
    int wanted() const { return gpus_ > 0 ? gpus_ : ranks_; }  // 0: not given
    int size() const { return place_.alone() ? wanted() : place_.size; }
    bool several() const { return size() > 1; }
    // Starts the other processes, or meets them. `job`: what all must have in common.
    Result<JobRanks> join(const std::string& job, const DeviceChoice& device,
                          std::chrono::milliseconds patience = RankGroup::Options{}.patience) const;

private:
    int ranks_ = 0, gpus_ = 0;
    RankPlace place_;
};

}  // namespace nibble
