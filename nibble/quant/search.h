// The mixed-precision search: scores of every (group, format), the best choice for a target of effective bits, the
// recipe that `nibble quantize` runs, and the same for a sweep of targets.
#pragma once

#include "quant/search_space.h"

#include <optional>

namespace nibble {

enum class ScoreMethod : uint8_t {
    fisher,    // sum over tokens t of (g_t . d_t)^2
    modelopt,  // sum over tokens t and outputs j of (g_tj d_tj)^2: auto_quantize's gradient score
    kl,        // mean over tokens of KL(reference || only this group quantized)
    given,     // read from a file
};
std::string_view method_name(ScoreMethod method);
Result<ScoreMethod> parse_score_method(std::string_view word);

struct SearchScores {
    ScoreMethod method = ScoreMethod::fisher;
    std::string origin;                       // of the text, or the file
    int64_t tokens = 0;                       // that were looked at
    std::vector<std::vector<double>> values;  // [group][i] of candidates[i]; "none" scores 0
    // From the lowest to the highest bits each score becomes the running minimum, as auto_quantize does.
    void make_monotone();
};

struct SearchPoint {
    double target = 0;           // bits
    double bits = 0;             // reached
    double score = 0;            // sum over groups
    std::optional<double> kl;    // measured
    std::vector<size_t> choice;  // per group, an index of SearchSpace::formats
};

// The choice of least score within `target` effective bits (a multiple of 0.001). Error: the target is below what the
// candidates can reach; the range is named.
Result<SearchPoint> choose(const SearchSpace& space, const SearchScores& scores, double target);

// `low`, `low + step` ... `high`; targets below the reachable are left out.
Result<std::vector<SearchPoint>> sweep(const SearchSpace& space, const SearchScores& scores, double low, double high,
                                       double step);

// The recipe as YAML, imports from the built-in tree, one rule per quantizer (experts share one); `scores` adds what
// each choice was weighed against as comments.
std::string recipe_text(const SearchSpace& space, const SearchPoint& point, std::string_view algorithm = "max",
                        const SearchScores* scores = nullptr);

// Resolves recipe_text(choice) for the checkpoint, and checks that every member of every group got its format: an
// error otherwise. Names in messages: `name`.
Result<Plan> plan_of(const SearchSpace& space, std::span<const size_t> choice,
                     std::span<const CheckpointTensor> tensors, const Json& config, const ResolveOptions& options = {});

struct SearchReport {
    std::string source, command;
    SearchSpace space;
    SearchScores scores;
    SearchPoint chosen;
    std::vector<SearchPoint> sweep;
    std::string measured_on;  // text of SearchPoint::kl; empty: none
    int64_t measured_tokens = 0;
    double seconds = 0;
};
Json to_json(const SearchReport& report);
std::string report_text(const SearchReport& report);  // for the terminal
std::string report_page(const SearchReport& report);  // HTML

// Scores out of a report's JSON, for another target without scoring again. Errors: a group or format of the space that
// the file lacks.
Result<SearchScores> scores_from_json(const Json& report, const SearchSpace& space, std::string_view origin);

}  // namespace nibble
