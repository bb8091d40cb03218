// Places where calibration, or a search over scales, had nothing to go by: statistics that are zero, singular or
// missing. None of them stops a job. Each kind has something that is done instead (what Model Optimizer does, where it
// goes on), one line, and a count in the report.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct Plan;
struct TensorReport;

enum class GapKind : uint8_t {
    unseen_experts,      // no token was routed to them
    few_tokens,          // experts that saw fewer tokens than CalibrationOptions::expert_tokens
    zero_inputs,         // the input is zero over the whole text
    zero_expert_inputs,  // the same of an expert whose peers' inputs are not zero
    zero_cache,          // keys or values are zero
    unscaled,            // awq_lite: the input is zero
    no_feedback,         // gptq, nibble_best: the second moments are not positive definite
    blind_blocks,        // local_hessian: no input of the block ever differed from zero
    blind_search,        // searches by squared error: the squares are zero in FP32
    too_small,           // nibble_best: the tensor scale has no reciprocal in FP32
    lost_weights,        // whatever the cause: SQNR below 5 dB
};

struct CalibrationGap {
    GapKind kind = GapKind::unseen_experts;
    int64_t count = 0;                 // of blocks for blind_blocks, else of modules
    std::vector<std::string> modules;  // or tensors
    std::string text;                  // the line: how many, the first, what was found, what was done instead
    bool operator==(const CalibrationGap&) const = default;
};

std::string_view gap_name(GapKind kind);  // as in reports: "zero_inputs"
std::optional<GapKind> gap_from_name(std::string_view name);

// count: of blocks. plain: the search's own fallback instead of Model Optimizer's choice (Search::maximum_when_blind).
CalibrationGap make_gap(GapKind kind, std::vector<std::string> modules, int64_t count = 0, bool plain = false);

// What shows in the tensors of a finished job, in the order of kinds.
std::vector<CalibrationGap> gaps_of_tensors(const Plan& plan, std::span<const TensorReport> tensors);

}  // namespace nibble
