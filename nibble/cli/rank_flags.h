// --ranks and --gpus: the number of processes of a command.
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
    // Adds both flags and returns them. `text`: help of --ranks.
    std::vector<CLI::Option*> add(CLI::App& command, const std::string& text);

    // Sets the device to cuda if --gpus is given.
    void choose_device(std::string& device) const;
    // Finds the rank of this process, and its GPU if `device` is a GPU. Error: not enough GPUs.
    Status choose_gpu(DeviceChoice& device);
    const RankPlace& place() const { return place_; }
    int wanted() const { return gpus_ > 0 ? gpus_ : ranks_; }  // 0: not given
    int size() const { return place_.alone() ? wanted() : place_.size; }
    bool several() const { return size() > 1; }
    // Starts the other processes, or connects to them. `job`: identity that all processes must share. Error: they do
    // not connect, or differ.
    Result<JobRanks> join(const std::string& job, const DeviceChoice& device,
                          std::chrono::milliseconds patience = RankGroup::Options{}.patience) const;

private:
    int ranks_ = 0, gpus_ = 0;
    RankPlace place_;
};

}  // namespace nibble
