// The content of the report page and the terminal summary: tensors grouped by role, layer, format and name pattern,
// with readable numbers. Pure functions of a QuantReport; every order follows from the report alone.
#pragma once

#include "page/numbers.h"
#include "quant/quant_report.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// The position of a tensor, parsed from its name. "model.layers.3.mlp.experts.17.up_proj.weight" is {3, 17, "expert
// up"}; "lm_head.weight" is {-1, -1, "lm_head"}. Layers outside the language model have their tower's name in the role
// ("mtp q").
struct TensorPlace {
    int layer = -1;
    int expert = -1;
    std::string role;
    bool operator==(const TensorPlace&) const = default;
};
TensorPlace place_of(std::string_view name);

// Returns the name with numeric components (all, or only expert indices) replaced by '*'.
enum class Wildcards { all, experts };
std::string name_pattern(std::string_view name, Wildcards which);

// Statistics of the SQNR of several tensors in dB. Tensors without error have an infinite SQNR: they are counted in
// `lossless` and left out of the other numbers.
struct SqnrRange {
    int64_t tensors = 0, lossless = 0;
    double low = 0, median = 0, mean = 0, high = 0;
    bool measured() const { return tensors > lossless; }
};
SqnrRange sqnr_range(std::vector<double> decibels);

struct LayerSummary {
    int layer = 0;
    SqnrRange sqnr;
};

struct RoleSummary {
    std::string role;
    Format format = Format::none;
    int64_t tensors = 0, elements = 0;
    double squared_error = 0, squared_weight = 0;
    SqnrRange sqnr;
    std::vector<LayerSummary> layers;  // by rising index; empty: tensors outside layers
    double pooled_db() const;          // over all weights together
};
// Returns one entry per format and role of quantized tensors: formats in the order of summarize_formats(); within a
// format q k v o gate up down first, then by first appearance.
std::vector<RoleSummary> summarize_roles(const QuantReport& report);

struct FormatSummary {
    std::string label;  // "nvfp4"; "bf16" for unchanged tensors
    Format format = Format::none;
    bool quantized = false;
    int64_t tensors = 0, elements = 0, source_bytes = 0, stored_bytes = 0;
    int64_t zeros = 0, saturated = 0, sign_flips = 0;
    double squared_error = 0, squared_weight = 0;
    std::vector<int64_t> codes, scales;  // 256 each
    double bits_per_element() const;
    double pooled_db() const;
};
// Returns quantized formats first, each group by falling size.
std::vector<FormatSummary> summarize_formats(const QuantReport& report);

// Raised blocks per layer (-1: outside layers) of tensors with at least one raised block, by rising layer.
struct RaisedSummary {
    int layer = -1;
    int64_t raised = 0, blocks = 0;
};
std::vector<RaisedSummary> summarize_raised(const QuantReport& report);
// Returns true if every raised block uses four as its largest code instead of six (normalization 256). Other searches
// use other factors.
bool raised_is_four_over_six(const QuantReport& report);

// Unchanged tensors by reason, then by name pattern, in order of first appearance.
struct CarriedPattern {
    std::string pattern, dtype;
    int64_t tensors = 0, elements = 0, bytes = 0;
};
struct CarriedReason {
    std::string reason;
    int64_t tensors = 0, elements = 0, bytes = 0;
    std::vector<CarriedPattern> patterns;
};
std::vector<CarriedReason> summarize_carried(const QuantReport& report);

// Returns indices of at most `count` quantized tensors, lowest finite SQNR first.
std::vector<size_t> worst_tensors(const QuantReport& report, size_t count);

// A note for readers of a report with calibrated weights about its SQNR.
inline constexpr std::string_view sqnr_is_not_the_aim =
    "SQNR compares weights; calibration made the layers' outputs closer, often at the cost of SQNR: compare models "
    "with "
    "`nibble eval`";

// Output errors over all solved linears in dB, before and after; linears is 0 if there are none.
struct OutputSummary {
    int64_t linears = 0;
    double before_db = 0, after_db = 0;
};
OutputSummary summarize_outputs(const QuantReport& report);

double ratio_db(double squared_weight, double squared_error);  // infinity if there is no error
std::string report_name(const QuantReport& report);  // last component of the output's path, or of the source's path
// Returns true if calibration chose weights by another criterion than their squared error (GPTQ, local Hessian, AWQ,
// nibble_best).
bool chose_by_outputs(const QuantReport& report);

}  // namespace nibble
