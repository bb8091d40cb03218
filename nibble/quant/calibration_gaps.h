// Cases in which calibration, or a search over scales, had no usable data: statistics that are zero, singular or
// missing. They never stop a job. Each kind has a fallback (that of Model Optimizer, where it continues), a message and
// a count in the report.
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
    unseen_experts,      // experts to which no token was routed
    few_tokens,          // experts that saw fewer tokens than CalibrationOptions::expert_tokens
    zero_inputs,         // the input is zero for the whole text
    zero_expert_inputs,  // an expert's input is zero, but those of other experts are not
    zero_cache,          // keys or values are zero for the whole text
    unscaled,            // awq_lite: the input is zero, so there is no scale
    no_feedback,   // gptq, nibble_best: the second moments are not positive definite, so errors are not propagated
    blind_blocks,  // local_hessian: all inputs of the block are zero
    blind_search,  // searches by squared error: the squares underflow to zero in FP32
    too_small,     // nibble_best: the tensor scale has no finite reciprocal in FP32
    lost_weights,  // the SQNR is below 5 dB, whatever the cause
};

struct CalibrationGap {
    GapKind kind = GapKind::unseen_experts;
    int64_t count = 0;                 // blocks for blind_blocks, else modules
    std::vector<std::string> modules;  // names of modules or tensors
    std::string text;                  // message: the count, the first name, the cause, and the fallback
    bool operator==(const CalibrationGap&) const = default;
};

std::string_view gap_name(GapKind kind);  // returns the name used in reports: "zero_inputs"
std::optional<GapKind> gap_from_name(std::string_view name);

// Makes a gap with its message. count: number of blocks. plain: the fallback is that of the search
// (Search::maximum_when_blind), not Model Optimizer's choice.
CalibrationGap make_gap(GapKind kind, std::vector<std::string> modules, int64_t count = 0, bool plain = false);

// Returns the gaps that the tensor reports of a finished job show, in the order of kinds.
std::vector<CalibrationGap> gaps_of_tensors(const Plan& plan, std::span<const TensorReport> tensors);

}  // namespace nibble
