#include "rl/rl_page.h"

#include "base/fields.h"
#include "page/html.h"
#include "page/numbers.h"
#include "page/svg.h"
#include "rl/rl_samples.h"
#include "run/charts.h"
#include "run/log.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t headline_steps = 20;  // the headline numbers are means over these steps

// The lines of the log by kind.
struct RlHistory {
    Json about;
    std::vector<Json> steps;
    std::vector<std::string> warnings;

    const Json& last() const { return steps.back(); }
};

// Returns NaN if the line has no such number, because JSON has no NaN.
double value_of(const Json& line, std::string_view key) {
    const auto found = line.find(key);
    return found != line.end() && found->is_number() ? found->get<double>() : NAN;
}

double mean_of(std::span<const Json> steps, std::string_view key) {
    double sum = 0, count = 0;
    for (const Json& line : steps)
        if (const double value = value_of(line, key); std::isfinite(value)) sum += value, ++count;
    return count > 0 ? sum / count : NAN;
}

double sum_of(const RlHistory& run, std::string_view key) {
    double sum = 0;
    for (const Json& line : run.steps)
        if (const double value = value_of(line, key); std::isfinite(value)) sum += value;
    return sum;
}

std::string figure(double value, int decimals = 3) {
    return std::isfinite(value) ? short_number(value, decimals) : "–";
}

struct LogField {
    std::string key, name;
    bool zeros = true;  // false: the curve is omitted if it is always 0
};

// Draws fields of the log as a chart, with a legend if there are several. Returns "" if no field has values.
std::string figure_of(const RlHistory& run, StepChart chart, std::initializer_list<LogField> lines) {
    std::vector<ChartCurve> curves;
    std::string legend;
    for (const LogField& line : lines) {
        ChartCurve curve{.name = line.name, .style = int(curves.size())};
        for (const Json& step : run.steps)
            if (const double y = value_of(step, line.key); std::isfinite(y))
                curve.samples.push_back({value_of(step, "step"), y});
        const auto value = &ChartSample::y;
        if (!line.zeros && std::ranges::all_of(
                               curve.samples, [](double y) { return y == 0; }, value))
            continue;
        const auto same = [&](const ChartCurve& other) {
            return std::ranges::equal(other.samples, curve.samples, {}, value, value);
        };
        // no values, or equal to another curve
        if (curve.samples.empty() || std::ranges::any_of(curves, same)) continue;
        legend += fmt::format("<span>{} {}</span>", marker_icon(curve.style), escape_html(curve.name));
        curves.push_back(std::move(curve));
    }
    const std::string drawn = step_chart(chart, curves);
    if (drawn.empty()) return {};
    return fmt::format("<figure><h3>{}</h3>\n{}{}</figure>\n", escape_html(chart.title),
                       lines.size() > 1 ? fmt::format("<div class=\"legend\">{}</div>", legend) : "", drawn);
}

std::string half(const RlHistory& run, const std::string& title, const std::string& unit,
                 std::initializer_list<LogField> lines, std::optional<double> low = {},
                 std::optional<double> high = {}) {
    return figure_of(run, {.title = title, .y_label = unit, .y_low = low, .y_high = high, .width = 440, .height = 250},
                     lines);
}

std::string section(std::string_view title, const std::string& content) {
    return content.empty() ? "" : fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, content);
}

std::string pair_of(const std::string& figures) {
    return figures.empty() ? "" : "<div class=\"pair\">" + figures + "</div>\n";
}

std::string header_of(const RlHistory& run, const std::string& title) {
    std::string meta;
    const auto add = [&](const std::string& text) { meta += fmt::format("<span>{}</span>", escape_html(text)); };
    const Json& config = run.about.contains("config") ? run.about["config"] : Json();
    if (config.is_object() && config.contains("policy") && config["policy"].is_object()) {
        const Json& policy = config["policy"];
        if (policy.contains("model_name") && policy["model_name"].is_string()) add(policy["model_name"]);
        const auto precision = policy.find("precision");
        // runs before commit 8d459c62 store it there
        if (precision != policy.end() && !run.about.contains("precision"))
            add(precision->is_string() ? precision->get<std::string>() : precision->dump());
    }
    if (run.about.contains("precision") && run.about["precision"].is_string()) add(run.about["precision"]);
    if (const double n = value_of(run.about, "parameters"); n > 0) add(human_large(std::llround(n)) + " parameters");
    add(fmt::format("{} prompts with {} answers a step", figure(value_of(run.last(), "prompts"), 0),
                    figure(value_of(run.last(), "answers"), 0)));
    return fmt::format(
        "<header><div class=\"kicker\">nibble · reinforcement learning</div>\n<h1>{}</h1>\n<div "
        "class=\"meta\">{}</div></header>\n",
        escape_html(title), meta);
}

std::string validation_card(const RlHistory& run) {
    for (size_t i = run.steps.size(); i-- > 0;) {
        const Json& line = run.steps[i];
        if (!line.contains("validation_reward")) continue;
        const double answers = value_of(line, "validation_answers");
        std::string more = fmt::format("after step {}; {} prompts", figure(value_of(line, "step"), 0),
                                       figure(value_of(line, "validation_prompts"), 0));
        if (answers > 1)
            more +=
                fmt::format("; avg@{0} {1}, pass@{0} {2}, cons@{0} {3}", answers, figure(value_of(line, "avg_at_k")),
                            figure(value_of(line, "pass_at_k")), figure(value_of(line, "cons_at_k")));
        return card("Validation reward", figure(value_of(line, "validation_reward")), more);
    }
    return {};
}

std::string cards_of(const RlHistory& run) {
    const std::span<const Json> all(run.steps);
    const size_t n = std::min(headline_steps, all.size());
    const auto first = all.first(n), last = all.last(n);
    std::string cards = card("Reward", figure(mean_of(last, "reward")),
                             fmt::format("mean of the last {} of {} steps; the first {}: {}", n,
                                         human_count(std::ssize(all)), n, figure(mean_of(first, "reward"))));
    cards += validation_card(run);
    const double differ = sum_of(run, "mismatch_tokens"), tokens = sum_of(run, "compared_tokens"),
                 old = sum_of(run, "off_policy_tokens");
    std::string compared =
        fmt::format("of {} compared between engine and trainer, in any bit", human_count(std::llround(tokens)));
    if (old > 0) compared += fmt::format("; {} of older weights", human_count(std::llround(old)));
    cards += tokens > 0 ? card("Tokens that differ", human_count(std::llround(differ)), compared)
                        : card("Tokens that differ", "?", "no token was compared");
    cards += card("A step", with_units(human_seconds(mean_of(last, "seconds"))),
                  fmt::format("{} tokens per answer; {} tokens/s generated",
                              figure(mean_of(last, "mean_gen_tokens_per_sample"), 1),
                              human_count(std::llround(mean_of(last, "generated_tokens") /
                                                       std::max(1e-9, mean_of(last, "generate_seconds"))))));
    return "<div class=\"cards\">" + cards + "</div>\n";
}

std::string phases_of(const RlHistory& run) {
    const double all = sum_of(run, "seconds");
    std::string bar, legend;
    double known = 0;
    int style = 0;
    const auto add = [&](std::string_view name, double seconds) {
        const double share = all > 0 ? seconds / all : 0;
        bar +=
            fmt::format("<div class=\"s{}\" style=\"flex-grow: {:.4f}\" title=\"{}\"></div>", style, share * 100, name);
        legend += fmt::format("<span class=\"s{}\"><span class=\"swatch\"></span></span><span>{} {}, {:.0f}%</span>",
                              style, name, human_seconds(seconds), share * 100);
        known += seconds;
        ++style;
    };
    add("rollout", sum_of(run, "generate_seconds"));
    add("reward", sum_of(run, "reward_seconds"));
    add("update", sum_of(run, "train_seconds"));
    if (all > known) add("validation and the rest", all - known);
    return fmt::format("<div class=\"composition\">{}</div>\n<div class=\"legend\">{}</div>\n", bar, legend);
}

// Returns the distance of a ratio from 1 as a shade from 0 to 3, with limits at 1 %, 10 % and a factor of 2.
int shade_of(double log_ratio) {
    const double size = std::abs(log_ratio);
    return size < 0.01 ? 0 : size < 0.1 ? 1 : size < 0.69 ? 2 : 3;
}

std::string token_span(const Json& token) {
    std::string text = escape_html(token.value("text", ""));
    for (size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 4) text.insert(at, "↵");
    if (!token.value("written", false)) return fmt::format("<span class=\"read\">{}</span>", text);
    const double g = value_of(token, "generated"), p = value_of(token, "previous"), c = value_of(token, "current");
    if (!std::isfinite(g)) return text;
    const double ratio = std::isfinite(c) ? c - g : 0;
    std::string css;
    // Four shades of probability, with limits at 0.9, 0.5 and 0.1.
    if (g < -0.105) css += fmt::format(" u{}", g > -0.693 ? 1 : g > -2.303 ? 2 : 3);
    if (const int shade = shade_of(ratio)) css += fmt::format(" {}{}", ratio > 0 ? "up" : "dn", shade);
    const bool stale = token.value("stale", false), same = token.value("same", true);
    if (!same && !stale) css += " differs";
    if (stale) css += " stale";
    const std::string tip =
        fmt::format("probability {}, ratio {}{}{}", human_value(std::exp(g)), human_value(std::exp(ratio)),
                    same || stale ? "" : fmt::format(", by the trainer {}", human_value(std::exp(p))),
                    stale ? ", of older weights" : "");
    return fmt::format("<span class=\"{}\" title=\"{}\">{}</span>", css.empty() ? "t" : css.substr(1), tip, text);
}

std::string sample_of(const Json& sample) {
    const double reward = value_of(sample, "reward");
    std::string head = std::isfinite(reward) ? fmt::format("<span class=\"badge {}\">reward {}</span>",
                                                           reward > 0.5 ? "good" : "warn", figure(reward))
                                             : std::string("<span class=\"badge warn\">not judged</span>");
    const double shaped = value_of(sample, "shaped_reward");
    if (std::isfinite(reward) && shaped != reward) head += fmt::format("<span>shaped {}</span>", figure(shaped));
    if (std::isfinite(reward))
        head += fmt::format("<span>advantage {}</span>", figure(value_of(sample, "advantage"), 2));
    if (sample.value("cut", false)) head += "<span>cut off</span>";
    if (sample.contains("failure")) head += fmt::format("<span>{}</span>", escape_html(sample.value("failure", "")));
    std::string tokens;
    for (const Json& token : sample["tokens"]) tokens += token_span(token);
    return fmt::format(
        "<article class=\"sample\"><div class=\"meta\">{}</div>\n<p class=\"asked\">{}</p>\n<div "
        "class=\"tokens\">{}</div>\n<p class=\"soft asked\">Expected answer: {}</p></article>\n",
        head, escape_html(sample.value("question", "")), tokens, escape_html(sample.value("expected", "")));
}

Result<std::string> samples_of(const fs::path& folder) {
    const fs::path file = folder / samples_name;
    std::error_code error;
    if (!fs::exists(file, error)) return std::string();
    NIBBLE_TRY(const Json json, read_json_file(file));
    NIBBLE_TRY(const Json* list, Fields(json).array("samples").within(file.string()));
    std::string out;
    try {
        for (const Json& sample : *list) out += sample_of(sample);
    } catch (const Json::exception&) {
        return fail("{}: has a damaged sample", file.string());
    }
    return section(
        fmt::format("Answers of step {}", figure(value_of(json, "step"), 0)),
        "<p class=\"note\">Answers are sorted by reward, the best first. A line under a token means a low probability "
        "(below 90%, 50%, 10%). If the step had several updates, a background means that the token became <span "
        "class=\"tokens\"><span class=\"up2\">more likely</span> or <span class=\"dn2\">less likely</span></span> by "
        "the last one. <span class=\"tokens\"><span class=\"differs\">A frame</span></span> means that the "
        "probabilities of trainer and engine differ in a bit.</p>\n" +
            out);
}

Result<RlHistory> read_history(const fs::path& folder) {
    const fs::path file = folder / run_log_name;
    NIBBLE_TRY(auto lines, read_run_log(file));
    RlHistory run;
    for (Json& line : lines) {
        if (line.contains("run"))
            run.about = std::move(line["run"]);
        else if (line.contains("reward"))
            run.steps.push_back(std::move(line));
        else if (line.contains("warning") && line["warning"].is_string())
            run.warnings.push_back(line["warning"]);
    }
    if (!run.about.is_object()) return fail("{}: is not the log of a run", file.string());
    if (run.steps.empty()) return fail("{}: has no steps yet", file.string());
    return run;
}

std::string warnings_of(const RlHistory& run) {
    std::string items;
    for (const std::string& warning : run.warnings) items += fmt::format("<li>{}</li>\n", escape_html(warning));
    if (const double failures = sum_of(run, "failures"); failures > 0) {
        std::string reason;
        for (const Json& line : run.steps)
            if (line.contains("failure_reasons") && line["failure_reasons"].is_array() &&
                !line["failure_reasons"].empty() && line["failure_reasons"][0].is_string())
                reason = line["failure_reasons"][0].get<std::string>();
        items += fmt::format("<li>{} answers could not be judged; the last reason: {}</li>\n",
                             human_count(std::llround(failures)), escape_html(reason));
    }
    return items.empty() ? "" : section("Warnings", "<ul class=\"warnings\">" + items + "</ul>");
}

}  // namespace

Result<std::string> rl_page(const fs::path& folder, int reload_seconds) {
    NIBBLE_TRY(const RlHistory run, read_history(folder));
    NIBBLE_TRY(const std::string samples, samples_of(folder));
    std::string name = fs::absolute(folder).lexically_normal().filename().string();
    if (run.about.contains("name") && run.about["name"].is_string()) name = run.about["name"];
    std::string main = header_of(run, name) + cards_of(run) + warnings_of(run);
    main += section(
        "Reward",
        pair_of(half(run, "Reward", "mean per step",
                     {{"reward", "reward"}, {"shaped_reward", "shaped reward"}, {"accuracy", "share with reward 1"}}) +
                half(run, "Validation", "mean, share",
                     {{"validation_reward", "reward"},
                      {"avg_at_k", "avg@k"},
                      {"pass_at_k", "pass@k"},
                      {"cons_at_k", "cons@k"}})));
    main += samples;
    main += section(
        "Answers",
        pair_of(half(run, "Tokens per answer", "tokens",
                     {{"mean_gen_tokens_per_sample", "mean"}, {"longest_answer", "longest"}}, 0) +
                half(run, "Share of answers", "share",
                     {{"cut_share", "cut off"}, {"max_turns_reached_rate", "at the limit of turns", false}}, 0, 1) +
                half(run, "Entropy", "nats per token", {{"approx_entropy", "entropy"}}) +
                half(run, "Prompts whose answers have equal rewards", "prompts", {{"equal_groups", "prompts"}}, 0)));
    main += section(
        "Engine against trainer",
        pair_of(half(run, "Tokens that differ in any bit", "tokens", {{"mismatch_tokens", "tokens"}}, 0) +
                half(run, "token_mult_prob_error", "1: equal", {{"token_mult_prob_error", "token_mult_prob_error"}}) +
                half(run, "Probability ratio of the updates", "mean, smallest, largest",
                     {{"probs_ratio", "mean"}, {"probs_ratio_min", "least"}, {"probs_ratio_max", "largest"}}) +
                half(run, "Tokens of older weights", "tokens", {{"off_policy_tokens", "tokens", false}}, 0)));
    main += section(
        "Time",
        phases_of(run) +
            pair_of(half(run, "Seconds per step", "s",
                         {{"generate_seconds", "rollout"}, {"reward_seconds", "reward"}, {"train_seconds", "update"}},
                         0) +
                    half(run, "Generated", "tokens per step", {{"generated_tokens", "tokens"}}, 0) +
                    half(run, "Seconds between update and rollout", "s",
                         {{"handover_seconds", "weights to rollouts"}, {"recalibrate_seconds", "scales of the cache"}},
                         0)));
    main += section("Update",
                    pair_of(half(run, "Loss", "", {{"loss", "loss"}, {"kl_penalty", "KL term over beta", false}}) +
                            half(run, "Gradient norm", "before clipping", {{"gradient_norm", "gradient norm"}}) +
                            half(run, "Learning rate", "", {{"learning_rate", "learning rate"}})));
    return document("nibble · " + name, main, reload_seconds);
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
