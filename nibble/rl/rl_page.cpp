#include "rl/rl_page.h"

#include "base/fields.h"
#include "page/html.h"
#include "rl/rl_samples.h"
#include "run/curves.h"
#include "run/log.h"

#include <algorithm>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t headline_steps = 20;  // the headline numbers are means over these steps

// The lines of the log by kind.
struct RlHistory {
    Json about;
    std::vector<Json> steps;
    std::vector<std::string> warnings;
    std::string failure;  // the last reason why an answer was not judged
    Json validation;      // the last line with a validation, or null
};

Result<RlHistory> read_history(const fs::path& folder) {
    const fs::path file = folder / run_log_name;
    NIBBLE_TRY(auto lines, read_run_log(file));
    RlHistory run;
    for (Json& line : lines) {
        if (line.contains("run")) {
            run.about = std::move(line["run"]);
        } else if (line.contains("reward")) {
            if (line.contains("validation_reward")) run.validation = line;
            const Json& reasons = line.contains("failure_reasons") ? line["failure_reasons"] : Json();
            if (reasons.is_array() && !reasons.empty() && reasons[0].is_string()) run.failure = reasons[0];
            run.steps.push_back(std::move(line));
        } else if (line.contains("warning") && line["warning"].is_string()) {
            run.warnings.push_back(line["warning"]);
        }
    }
    if (!run.about.is_object()) return fail("{}: is not the log of a run", file.string());
    if (run.steps.empty()) return fail("{}: has no steps yet", file.string());
    return run;
}

// Returns what the log's first line states about the model.
Json about_model(const Json& about) {
    Json model = Json::object();
    const auto text = [&](const char* name, const Json& parent, const char* key) {
        if (parent.is_object() && parent.contains(key) && parent[key].is_string()) model[name] = parent[key];
    };
    const Json& config = about.contains("config") ? about["config"] : Json();
    const Json& policy = config.is_object() && config.contains("policy") ? config["policy"] : Json();
    text("model", policy, "model_name");
    // Runs before commit 8d459c62 store it there.
    if (policy.is_object() && policy.contains("precision")) model["precision"] = policy["precision"];
    text("precision", about, "precision");
    if (about.contains("parameters") && about["parameters"].is_number()) model["parameters"] = about["parameters"];
    return model;
}

// Returns the samples file, or null if there is none.
Result<Json> read_samples(const fs::path& folder) {
    const fs::path file = folder / samples_name;
    std::error_code error;
    if (!fs::exists(file, error)) return Json();
    NIBBLE_TRY(Json json, read_json_file(file));
    NIBBLE_TRY(const Json* samples, Fields(json).array("samples").within(file.string()));
    const auto is_token = [](const Json& token) {
        return token.is_object() && token.contains("text") && token["text"].is_string();
    };
    for (const Json& sample : *samples)
        if (!sample.is_object() || !sample.contains("tokens") || !sample["tokens"].is_array() ||
            !std::ranges::all_of(sample["tokens"], is_token))
            return fail("{}: has a damaged sample", file.string());
    return json;
}

}  // namespace

Result<std::string> rl_page(const fs::path& folder, int reload_seconds) {
    NIBBLE_TRY(const RlHistory run, read_history(folder));
    NIBBLE_TRY(Json samples, read_samples(folder));
    std::string name = fs::absolute(folder).lexically_normal().filename().string();
    if (run.about.contains("name") && run.about["name"].is_string()) name = run.about["name"];
    return document("nibble · " + name, "reinforcement",
                    {{"name", name},
                     {"about", about_model(run.about)},
                     {"steps", run.steps.size()},
                     {"headline_steps", headline_steps},
                     {"newest", run.steps.back()},
                     {"validation", run.validation},
                     {"warnings", run.warnings},
                     {"failure", run.failure},
                     {"fields", number_fields(run.steps, headline_steps)},
                     {"samples", std::move(samples)}},
                    reload_seconds);
}

RunView rl_view() {
    RunView view{.page = rl_page};
    for (const auto& [key, tag] : {std::pair{"gradient_norm", "grad_norm"}, std::pair{"learning_rate", "lr"}})
        view.scalars.push_back({key, fmt::format("train/{}", tag)});
    for (const std::string key : {"loss",
                                  "reward",
                                  "shaped_reward",
                                  "accuracy",
                                  "mean_gen_tokens_per_sample",
                                  "turns_per_sample",
                                  "max_turns_reached_rate",
                                  "token_mult_prob_error",
                                  "gen_kl_error",
                                  "policy_kl_error",
                                  "js_divergence_error",
                                  "sampling_importance_ratio",
                                  "approx_entropy",
                                  "probs_ratio",
                                  "probs_ratio_clamped",
                                  "probs_ratio_min",
                                  "probs_ratio_max",
                                  "kl_penalty",
                                  "is_oob_ratio",
                                  "outside_truncation",
                                  "max_seq_mult_prob_error",
                                  "mean_seq_mult_prob_error",
                                  "min_seq_mult_prob_error",
                                  "max_seq_mult_prob_error_after_mask",
                                  "mean_seq_mult_prob_error_after_mask",
                                  "min_seq_mult_prob_error_after_mask",
                                  "num_masked_seqs_by_logprob_error",
                                  "masked_correct_pct",
                                  "num_valid_samples",
                                  "filtered_tokens",
                                  "kv_clipped",
                                  "q_clipped",
                                  "compared_tokens",
                                  "mismatch_tokens",
                                  "max_abs_diff",
                                  "off_policy_tokens",
                                  "equal_groups",
                                  "cut_share",
                                  "failures",
                                  "generated_tokens"})
        view.scalars.push_back({key, "train/" + key});
    for (const auto& [key, tag] :
         {std::pair{"validation_reward", "validation/accuracy"}, std::pair{"avg_at_k", "validation/avg_at_k"},
          std::pair{"pass_at_k", "validation/pass_at_k"}, std::pair{"cons_at_k", "validation/cons_at_k"},
          std::pair{"generate_seconds", "timing/train/generation"}, std::pair{"reward_seconds", "timing/train/reward"},
          std::pair{"train_seconds", "timing/train/policy_training"},
          std::pair{"handover_seconds", "timing/train/handover"},
          std::pair{"recalibrate_seconds", "timing/train/recalibrate"},
          std::pair{"seconds", "timing/train/total_step_time"},
          std::pair{"rank_seconds_most_to_median", "timing/train/slowest_rank_to_median"}})
        view.scalars.push_back({key, tag});
    return view;
}

}  // namespace nibble
