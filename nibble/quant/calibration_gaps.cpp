#include "quant/calibration_gaps.h"

#include "quant/plan.h"
#include "quant/quant_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

struct GapRow {
    GapKind kind;
    std::string_view name, what, instead, plain;  // plain: the text of `instead` with Search::maximum_when_blind;
                                                  // empty: the same text
};

constexpr std::array gap_rows{
    GapRow{GapKind::unseen_experts, "unseen_experts", "no token reached these experts",
           "each takes the largest input scale of the layer's other experts, and solvers use no statistics", ""},
    GapRow{GapKind::few_tokens, "few_tokens", "few tokens reached these experts", "their statistics are inaccurate",
           ""},
    GapRow{GapKind::zero_inputs, "zero_inputs", "inputs are zero for the whole calibration text",
           "input_scale is 1/448 for NVFP4 and 1 for FP8, as Model Optimizer writes it", ""},
    GapRow{GapKind::zero_expert_inputs, "zero_expert_inputs",
           "inputs of these experts are zero for the whole calibration text",
           "each takes the largest input scale of the layer's other experts", ""},
    GapRow{GapKind::zero_cache, "zero_cache", "keys or values are zero for the whole calibration text",
           "k_scale or v_scale is 1", ""},
    GapRow{GapKind::unscaled, "unscaled",
           "awq_lite has no data for its search: the inputs are zero, or calibration never ran the module",
           "the weights are not scaled", ""},
    GapRow{GapKind::no_feedback, "no_feedback",
           "the second moments are not positive definite (inputs that are zero, or no damping)",
           "weights are rounded without feedback, as in Model Optimizer", ""},
    GapRow{GapKind::blind_blocks, "blind_blocks", "the inputs of these blocks are zero for the whole calibration text",
           "local_hessian takes the smallest scale as Model Optimizer does, which makes the weights zero "
           "(--compat none keeps them)",
           "the scale minimizes the squared error of the weights"},
    GapRow{GapKind::blind_search, "blind_search",
           "the weights are so small that all candidate scales have the same error",
           "the first candidate is taken as in Model Optimizer, which loses the weights (--compat none keeps them)",
           "the scale comes from the block's maximum"},
    GapRow{GapKind::too_small, "too_small", "the weights are too small for nibble_best",
           "their scales come from the maximum", ""},
    GapRow{GapKind::lost_weights, "lost_weights", "most of the weights' information is lost (SQNR below 5 dB)",
           "they are written as the recipe says (--ignore keeps a module unquantized)", ""},
};

const GapRow& row_of(GapKind kind) { return *std::ranges::find(gap_rows, kind, &GapRow::kind); }

// Returns true if a search whose candidates all have equal losses chooses another candidate than the maximum.
bool loses_when_blind(const Search& search) {
    return search.kind == Search::Kind::sweep ||
           (search.kind == Search::Kind::multipliers && search_multipliers(search).front() != 1.0f);
}

}  // namespace

std::string_view gap_name(GapKind kind) { return row_of(kind).name; }

std::optional<GapKind> gap_from_name(std::string_view name) {
    const auto found = std::ranges::find(gap_rows, name, &GapRow::name);
    return found == gap_rows.end() ? std::nullopt : std::optional(found->kind);
}

CalibrationGap make_gap(GapKind kind, std::vector<std::string> modules, int64_t count, bool plain) {
    const GapRow& row = row_of(kind);
    const bool blocks = kind == GapKind::blind_blocks;
    CalibrationGap gap{kind, blocks ? count : std::ssize(modules), std::move(modules), {}};
    const std::string many =
        blocks ? fmt::format("{} blocks of {} tensor{}", count, gap.modules.size(), gap.modules.size() == 1 ? "" : "s")
               : fmt::format("{} module{}", gap.count, gap.count == 1 ? "" : "s");
    gap.text = fmt::format("{} (first: {}): {}; {}", many, gap.modules.front(), row.what,
                           plain && !row.plain.empty() ? row.plain : row.instead);
    return gap;
}

std::vector<CalibrationGap> gaps_of_tensors(const Plan& plan, std::span<const TensorReport> tensors) {
    std::vector<std::string> no_feedback, blind_blocks, blind_search, too_small, lost;
    int64_t blocks = 0;
    bool plain = false;
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        const TensorReport& t = tensors[i];
        plain |= entry.spec.search.maximum_when_blind;
        if (t.gaps.no_feedback) no_feedback.push_back(entry.module);
        if (t.gaps.too_small) too_small.push_back(entry.module);
        if (t.blind_search && loses_when_blind(entry.spec.search)) {
            blind_search.push_back(entry.module);
        } else if (t.gaps.blind_blocks > 0) {
            blind_blocks.push_back(entry.module);
            blocks += t.gaps.blind_blocks;
        }
        if (t.quantized() && loses_most(t)) lost.push_back(entry.module);
    }
    std::vector<CalibrationGap> gaps;
    const auto add = [&](GapKind kind, std::vector<std::string>& modules) {
        if (!modules.empty()) gaps.push_back(make_gap(kind, std::move(modules), blocks, plain));
    };
    add(GapKind::no_feedback, no_feedback);
    add(GapKind::blind_blocks, blind_blocks);
    add(GapKind::blind_search, blind_search);
    add(GapKind::too_small, too_small);
    add(GapKind::lost_weights, lost);
    return gaps;
}

}  // namespace nibble
