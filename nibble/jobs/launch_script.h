// The text that `nibble launch` submits: a batch script for Slurm or a manifest for Kubernetes, made from a template.
#pragma once

#include "nibble/error.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

enum class LaunchSystem { slurm, kubernetes };

struct LaunchJob {
    LaunchSystem system = LaunchSystem::slurm;
    std::string name = "nibble", time = "04:00:00", log, image = "nibble:latest", claim = "models";
    int nodes = 1, ranks_per_node = 1, gpus_per_rank = 0;
    std::string program = "nibble";
    std::vector<std::string> command;            // words of a nibble command that all ranks run: "quantize", "SRC" ...
    std::vector<std::vector<std::string>> then;  // commands that one rank runs afterwards, each if the last succeeded
};

// True if the ranks serve one model together on Kubernetes: `serve` with --tensor-parallel-size equal to their number.
bool is_group(const LaunchJob& job);

// Returns the built-in template. Kubernetes: a Job; for the command `serve` a Deployment, or a LeaderWorkerSet for a
// group of ranks, with a Service.
std::string_view launch_template(const LaunchJob& job);

// Replaces {{name}} by the job's values. Error: a placeholder that does not exist, or a word that cannot be written in
// the script; the message names it.
Result<std::string> launch_script(const LaunchJob& job, std::string_view text);

}  // namespace nibble
