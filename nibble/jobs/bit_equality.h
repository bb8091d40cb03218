// Do rollouts and training compute the same bits? Compares them over precision recipes and KV caches
// (rl/mismatch_lab.h), with negative controls, and several processes with one (rl/rank_lab.h).
#pragma once

#include "base/json.h"
#include "parallel/rank_group.h"
#include "tensor/device.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct BitEqualityOptions {
    std::string model, shape;          // one of them: a checkpoint, or a shape with random weights
    int64_t layers = 0;                // layers of the shape that are used; 0: all
    std::vector<std::string> recipes;  // empty: all that promise equal bits; on a GPU bf16
    std::string kv;                    // bf16, fp8, fp8_q; empty: the first two
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;
    int64_t prompts = 72;
    std::string kernels;
    DeviceChoice device;
    int threads = 0;             // 0: all cores
    RankGroup* ranks = nullptr;  // null: one process
};

struct BitEqualityReport {
    Json recipes = Json::array();  // results of rank 0: a line per engine mode, the controls, the comparison of ranks
    int broken = 0;                // recipes that promise equal bits and have others
    int unseen = 0;                // controls that the comparison did not see
};

// All ranks call it together. `say` gets lines of a table while the comparison runs; may be empty.
Result<BitEqualityReport> check_bit_equality(const BitEqualityOptions& options,
                                             const std::function<void(std::string_view)>& say);

}  // namespace nibble
