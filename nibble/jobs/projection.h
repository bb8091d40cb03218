// The job of `nibble plan`: computes from a config.json what a model needs on several hosts. No weights are read.
#pragma once

#include "base/progress.h"
#include "nibble/error.h"
#include "nibble/report.h"

#include <cstdint>
#include <string>

namespace nibble {

struct ProjectionOptions {
    std::string model;  // config.json, or a folder that contains it
    int hosts = 1, devices = 8;
    std::string device = "h200";  // a name of projection_devices()
    std::string recipe = "w4a16_nvfp4";
    double storage_gb = 5;  // GB/s that each host reads, and writes, at the same time
    int64_t calib_sequences = 512, calib_sequence = 2048;
    int64_t context = 8192;  // tokens of a sequence, for the cache
};

// Returns the figures with their formulas and constants. Errors: an unknown device, a model that nibble does not run, a
// recipe that quantizes nothing of it.
Result<JobReport> project(const ProjectionOptions& options);

}  // namespace nibble
