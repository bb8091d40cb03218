#include "jobs/train_text.h"

#include "page/numbers.h"
#include "train/train_flops.h"
#include "train/train_rules.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {

std::vector<std::string> train_table_lines(const TrainEngine& trainer) {
    struct Row {
        int64_t first, last;
        std::string unit, products;
    };
    std::vector<Row> rows;
    for (const UnitLine& line : trainer.recipe().table()) {
        std::string unit = line.name.substr(line.name.rfind('.') + 1);
        const std::string products = fmt::format("forward {}; input gradient {}; weight gradient {}", line.forward,
                                                 line.input_gradient, line.weight_gradient);
        const auto like = std::ranges::find_if(
            rows, [&](const Row& r) { return r.unit == unit && r.products == products && r.last >= line.layer - 1; });
        if (like == rows.end())
            rows.push_back({line.layer, line.layer, std::move(unit), products});
        else
            like->last = line.layer;
    }
    std::vector<std::string> lines;
    for (const Row& r : rows) {
        const std::string where = r.first < 0         ? ""
                                  : r.first == r.last ? fmt::format("layer {} ", r.first)
                                                      : fmt::format("layers {}-{} ", r.first, r.last);
        lines.push_back(fmt::format("  {}{}: {}", where, r.unit, r.products));
    }
    for (const std::string& note : trainer.notes()) lines.push_back("  " + note);
    return lines;
}

std::vector<std::string> train_start_lines(const TrainConfig& c, const TrainEngine& trainer,
                                           const std::string& memory) {
    std::vector<std::string> lines{fmt::format(
        "{} parameters, {} step{} of {} x {} tokens, precision {}; FLOP as MaxText counts (causal attention "
        "at one half)",
        trainer.parameters().elements(), c.steps, c.steps == 1 ? "" : "s", c.batch, c.sequence,
        train_precision_name(c.precision))};
    if (const int64_t most = trainer.config().context; most > 0 && c.sequence > most)
        lines.push_back(
            fmt::format("  warning: rows of {} tokens; the model's config.json allows {} (max_position_embeddings), "
                        "and the export keeps that number",
                        c.sequence, most));
    for (std::string& line : train_table_lines(trainer)) lines.push_back(std::move(line));
    if (!memory.empty()) lines.push_back("  memory: " + memory);
    const double flops = trainer.flops(c.sequence);
    const std::string fp4 = fp4_savings(trainer.recipe().table(), flops, c.batch * c.sequence).text();
    if (!fp4.empty()) lines.push_back("  " + fp4);
    return lines;
}

std::vector<std::string> rollout_lines(const RlConfig& c) {
    std::vector<std::string> lines;
    const RlGeneration& g = c.generation;
    if (g.precision)
        lines.push_back(
            fmt::format("  rollouts: {}{}{}{}, weights of their own", train_precision_name(*g.precision),
                        g.precision->power_of_two ? ", power_of_two" : "",
                        g.precision->first_bf16 ? fmt::format(", first_bf16 {}", g.precision->first_bf16) : "",
                        g.precision->last_bf16 ? fmt::format(", last_bf16 {}", g.precision->last_bf16) : ""));
    const char* cache = g.cache.format == KvFormat::none  ? "BF16"
                        : g.cache.format == KvFormat::fp8 ? "FP8 E4M3, one scale for K and one for V in each layer"
                                                          : "FP8 E4M3, a power-of-two scale for each position and head";
    const char* sides = g.cache.format == KvFormat::none ? ""
                        : g.cache.mirrored               ? ", in updates too"
                                                         : ", in rollouts alone";
    lines.push_back(fmt::format("  KV cache: {}{}; queries: {}", cache, sides,
                                g.cache.queries ? "FP8 E4M3, one scale in each layer" : "BF16"));
    return lines;
}

Json step_json(const StepReport& r, double memory_gib) {
    Json json{{"step", r.step},
              {"loss", r.result.loss},
              {"gradient_norm", r.result.gradient_norm},
              {"learning_rate", r.result.learning_rate},
              {"tokens", r.result.tokens},
              {"total_weights", r.result.weight},
              {"seconds", r.seconds},
              {"tokens_per_second", static_cast<double>(r.result.tokens) / r.seconds},
              {"tflops", r.flops / r.seconds * 1e-12},
              {"memory_gib", memory_gib}};
    if (r.validation) json["validation"] = *r.validation;
    for (const UnitQuality& unit : r.quality) json["quality"].push_back(to_json(unit));
    if (r.result.skipped) json["skipped"] = true;
    if (r.result.outlier) json["outlier"] = true;
    return json;
}

std::string step_text(const StepReport& r, double memory_gib) {
    return fmt::format(
        "completed step: {}, seconds: {:.3f}, TFLOP/s/device: {:.3f}, Tokens/s/device: {:.3f}, "
        "total_weights: {:g}, loss: {:.3f}, gradient_norm: {:.3f}, learning_rate: {:.3e}, memory_gib: {:.2f}{}{}{}",
        r.step, r.seconds, r.flops / r.seconds * 1e-12, static_cast<double>(r.result.tokens) / r.seconds,
        r.result.weight, r.result.loss, r.result.gradient_norm, r.result.learning_rate, memory_gib,
        r.validation ? fmt::format(", validation: {:.3f}", *r.validation) : "",
        r.result.outlier       ? ", skipped: outlier"
        : !r.result.skipped    ? ""
        : r.result.weight == 0 ? ", skipped: no label that the loss counts"
                               : ", skipped: not finite",
        r.seconds_left > 0 ? ", left: " + human_seconds(r.seconds_left) : "");
}

}  // namespace nibble
