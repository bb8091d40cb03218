// The output of `nibble bench` for a GPU's kernels: one line per shape, and the same as JSON.
#pragma once

#include "base/json.h"
#include "gpu_bench/graph_time.h"
#include "gpu_bench/machine.h"

#include <cstdio>
#include <string>

namespace nibble::bench {

struct KernelRow {
    std::string kernel, shape;
    int64_t tokens = 0;
    Check check;
    GraphTime time;
    double bytes = 0, operations = 0;  // minimum bytes to move and operations to compute
    bool fp8 = false;                  // uses the FP8 tensor cores
    double baseline_us = 0;            // 0: no baseline
};

class KernelTable {
public:
    // `out` null: nothing is printed. `baseline`: name of the denominator in the last column.
    KernelTable(std::FILE* out, const DeviceInfo& device, const MachineRates& rates, const Vendor& vendor,
                std::string baseline);
    // Adds a row. If its check failed, the row shows the difference instead of a time.
    void add(const KernelRow& row);
    bool good() const { return good_ && !json_["results"].empty(); }
    const Json& json() const { return json_; }

private:
    std::FILE* out_;
    MachineRates rates_;
    bool good_ = true;
    Json json_;
};

}  // namespace nibble::bench
