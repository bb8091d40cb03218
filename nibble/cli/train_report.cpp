#include "cli/train_report.h"

#include "cli/options.h"
#include "train/check_forward.h"
#include "train/train_flops.h"

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

Result<Outcome> report_forward(bool json, bool quiet, TrainEngine& trainer, BatchSource& data,
                               const TrainConfig& config) {
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
        fmt::print("{}", json_line({{"promised", check.promised}, {"mismatches", check.mismatches()}, {"ways", ways}}));
    if (!check.promised && !json && !quiet)
        fmt::print("{} does not promise equal bits: scales of its inputs are those of a whole tensor\n",
                   train_precision_name(config.precision));
    return Outcome{.findings = check.promised && check.mismatches() > 0};
}

}  // namespace nibble
