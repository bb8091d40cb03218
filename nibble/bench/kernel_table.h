// What `nibble bench` says about a GPU's kernels: a line for each shape, and the same as JSON.
#pragma once

#include "base/json.h"
#include "bench/graph_time.h"
#include "bench/machine.h"

#include <cstdio>
#include <string>

namespace nibble::bench {

struct KernelRow {
    std::string kernel, shape;
    int64_t tokens = 0;
    Check check;
    GraphTime time;
    double bytes = 0, operations = 0;  // that must be moved and done
    bool fp8 = false;                  // on the FP8 tensor cores
    double baseline_us = 0;            // 0: none
};

class KernelTable {
public:
    // `out` null: nothing is printed. `baseline`: what the last column is a ratio to.
    KernelTable(std::FILE* out, const DeviceInfo& device, const MachineRates& rates, const Vendor& vendor,
                std::string baseline);
    // A row whose check failed shows what differs instead of a time.
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
