#include "cli/train_report.h"

#include "cli/options.h"
#include "page/numbers.h"
#include "train/check_forward.h"
#include "train/train_flops.h"
#include "train/train_rules.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {

// Layers that are treated alike are one line: "layers 0-11  q_proj  NVFP4 1x16 ...".
void print_train_table(const TrainEngine& trainer) {
    struct Row {
        int64_t first, last;
        std::string unit, products;
    };
    std::vector<Row> rows;
    for (const UnitLine& line : trainer.table()) {
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
    for (const Row& r : rows) {
        const std::string where = r.first < 0         ? ""
                                  : r.first == r.last ? fmt::format("layer {} ", r.first)
                                                      : fmt::format("layers {}-{} ", r.first, r.last);
        fmt::print("  {}{}: {}\n", where, r.unit, r.products);
    }
    for (const std::string& note : trainer.notes()) fmt::print("  {}\n", note);
}

void print_fp4_savings(const TrainEngine& trainer, const TrainConfig& config) {
    const double flops = trainer.flops(config.sequence);
    const std::string fp4 = fp4_savings(trainer.table(), flops, config.batch * config.sequence).text();
    if (!fp4.empty()) fmt::print("  {}\n", fp4);
}

TrainCache cache_of(const ForwardQuestion& question) {
    TrainCache cache;
    cache.queries = question.kv == "fp8_q";
    if (question.kv == "fp8" || cache.queries) cache.format = KvFormat::fp8;
    if (question.kv == "fp8_page") cache.format = KvFormat::fp8_page;
    return cache;
}

Status check(const ForwardQuestion& question, const TrainConfig& config) {
    if (question.late && !config.precision.late_forward)
        return fail("--late: precision {} has no late_forward", train_precision_name(config.precision));
    if (question.late && !late_phase(config.precision, config.steps - 1, config.steps))
        return fail("--late: the late part of {} is not reached in {} steps", train_precision_name(config.precision),
                    config.steps);
    if (question.kv != "bf16" && config.lora.rank > 0) return fail("--kv: adapters are trained with K and V in BF16");
    return Ok{};
}

Result<Outcome> report_forward(bool json, bool quiet, TrainEngine& trainer, BatchSource& data,
                               const TrainConfig& config, const ForwardQuestion& question) {
    if (question.late) NIBBLE_CHECK(trainer.enter_phase(config.steps - 1, config.steps));
    NIBBLE_TRY(const TrainBatch batch, data.next(config.batch));
    if (trainer.calibrates()) NIBBLE_CHECK(trainer.calibrate({&batch, 1}));
    NIBBLE_TRY(const ForwardCheck check, check_forward(trainer, batch));
    Json ways = Json::array();
    for (const ForwardWay& way : check.ways) {
        ways.push_back(
            {{"way", way.name}, {"labels", way.labels}, {"mismatches", way.mismatches}, {"apart", way.apart}});
        if (!json && !quiet)
            fmt::print("{}: {} log-probabilities, {} with other bits{}\n", way.name, way.labels, way.mismatches,
                       way.mismatches ? fmt::format(", at most {:.3g} apart", way.apart) : "");
    }
    if (json)
        fmt::print("{}", json_line({{"kv", question.kv},
                                    {"late", question.late},
                                    {"promised", check.promised},
                                    {"mismatches", check.mismatches()},
                                    {"ways", ways}}));
    else if (!quiet && question.kv != "bf16")
        fmt::print("K and V{} through E4M3 on both sides{}\n", question.kv == "fp8_q" ? ", and Q," : "",
                   question.kv == "fp8_page" ? "" : ", scales of the first batch");
    if (!check.promised && !json && !quiet)
        fmt::print("{} does not promise equal bits: scales of its inputs are those of a whole tensor\n",
                   train_precision_name(config.precision));
    return Outcome{.findings = check.promised && check.mismatches() > 0};
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

void print_step(const StepReport& r, double memory_gib) {
    fmt::print(
        "completed step: {}, seconds: {:.3f}, TFLOP/s/device: {:.3f}, Tokens/s/device: {:.3f}, "
        "total_weights: {:g}, loss: {:.3f}, gradient_norm: {:.3f}, learning_rate: {:.3e}, memory_gib: {:.2f}{}{}{}\n",
        r.step, r.seconds, r.flops / r.seconds * 1e-12, static_cast<double>(r.result.tokens) / r.seconds,
        r.result.weight, r.result.loss, r.result.gradient_norm, r.result.learning_rate, memory_gib,
        r.validation ? fmt::format(", validation: {:.3f}", *r.validation) : "",
        r.result.outlier       ? ", skipped: outlier"
        : !r.result.skipped    ? ""
        : r.result.weight == 0 ? ", skipped: no token is learned"
                               : ", skipped: not finite",
        r.seconds_left > 0 ? ", left: " + human_seconds(r.seconds_left) : "");
    std::fflush(stdout);
}

}  // namespace nibble
