// The mixed-precision search: scores of every (group, format), the best choice for a target of effective bits, the
// recipe for `nibble quantize`, and the same for a range of targets.
#pragma once

#include "quant/search_space.h"

#include <optional>

namespace nibble {

enum class ScoreMethod : uint8_t {
    fisher,    // sum over tokens t of (g_t . d_t)^2
    modelopt,  // sum over tokens t and outputs j of (g_tj d_tj)^2: the gradient score of auto_quantize
    kl,        // mean over tokens of KL(reference || only this group quantized)
    given,     // read from a file
};
std::string_view method_name(ScoreMethod method);
Result<ScoreMethod> parse_score_method(std::string_view word);

struct SearchScores {
    ScoreMethod method = ScoreMethod::fisher;
    std::string origin;                       // source of the text, or the file
    int64_t tokens = 0;                       // tokens on which the scores are based
    std::vector<std::vector<double>> values;  // [group][i] is the score of candidates[i]; that of "none" is 0
    // From the lowest to the highest bits, replaces each score by the running minimum, as auto_quantize does.
    void make_monotone();
};

struct SearchPoint {
    double target = 0;           // target, in effective bits
    double bits = 0;             // effective bits of the choice
    double score = 0;            // sum over groups
    std::optional<double> kl;    // measured mean KL divergence
    std::vector<size_t> choice;  // per group an index of SearchSpace::formats
};

// Returns the choice with the least score within `target` effective bits (a multiple of 0.001). Error: the target is
// below the lowest possible value; names the possible range.
Result<SearchPoint> choose(const SearchSpace& space, const SearchScores& scores, double target);

// Returns the choices for targets `low`, `low + step` ... `high`, without targets below the lowest possible value.
Result<std::vector<SearchPoint>> sweep(const SearchSpace& space, const SearchScores& scores, double low, double high,
                                       double step);

// Returns the recipe as YAML with imports from the built-in tree and one rule per quantizer (experts share one).
// `scores`: if set, comments list the scores of each choice.
std::string recipe_text(const SearchSpace& space, const SearchPoint& point, std::string_view algorithm = "max",
                        const SearchScores* scores = nullptr);

// Resolves recipe_text(choice) for the checkpoint. Error: a member of a group did not get its format. Messages call the
// recipe `name`.
Result<Plan> plan_of(const SearchSpace& space, std::span<const size_t> choice,
                     std::span<const CheckpointTensor> tensors, const Json& config, const ResolveOptions& options = {});

struct SearchReport {
    std::string source, command;
    SearchSpace space;
    SearchScores scores;
    SearchPoint chosen;
    std::vector<SearchPoint> sweep;
    std::string measured_on;  // text on which SearchPoint::kl was measured; empty: not measured
    int64_t measured_tokens = 0;
    double seconds = 0;
};
Json to_json(const SearchReport& report);
std::string report_text(const SearchReport& report);  // for the terminal
std::string report_page(const SearchReport& report);  // HTML page

// Reads scores from a report's JSON, to choose for another target without scoring again. Errors: a group or format of
// the space that the file lacks.
Result<SearchScores> scores_from_json(const Json& report, const SearchSpace& space, std::string_view origin);

}  // namespace nibble
