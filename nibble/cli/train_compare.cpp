#include "cli/train_compare.h"

#include "base/utf8.h"
#include "checkpoint/output_place.h"
#include "cli/options.h"
#include "io/atomic_file.h"
#include "run/history.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {
namespace {

constexpr size_t compared_steps = 20;

Json comparison_json(const std::vector<RunHistory>& runs) {
    Json list = Json::array();
    for (const RunHistory& run : runs) {
        Json one{{"name", run.name},
                 {"group", run.group},
                 {"steps", run.steps.back().step + 1},
                 {"loss", mean_loss(run, compared_steps)}};
        one["validation"] = run.last_validation() ? Json(*run.last_validation()) : Json();
        list.push_back(std::move(one));
    }
    return list;
}

void print_comparison(const std::vector<RunHistory>& runs) {
    size_t width = 3;
    for (const RunHistory& run : runs) width = std::max(width, printable(run.name).size());
    fmt::print("{:<{}}  {:>8}  {:>9}  {:>10}  {:>9}\n", "run", width, "steps", "loss", "validation", "gap");
    const auto first = runs[0].last_validation();
    for (const RunHistory& run : runs) {
        const auto validation = run.last_validation();
        const bool validated = first && validation;
        const double gap =
            validated ? *validation - *first : mean_loss(run, compared_steps) - mean_loss(runs[0], compared_steps);
        fmt::print("{:<{}}  {:>8}  {:>9.4f}  {:>10}  {:>+9.4f}\n", printable(run.name), width,
                   run.steps.back().step + 1, mean_loss(run, compared_steps),
                   validation ? fmt::format("{:.4f}", *validation) : "-", gap);
    }
    fmt::print(
        "loss: mean of the last {} steps; gap: difference from {}, of the validation loss if both runs have it\n",
        compared_steps, printable(runs[0].name));
}

}  // namespace

Status compare_runs(const std::vector<std::string>& paths, const std::string& page, bool json) {
    if (!page.empty()) NIBBLE_CHECK(check_output_file(page));
    std::vector<RunHistory> runs;
    for (const std::string& path : paths) {
        NIBBLE_TRY(runs.emplace_back(), read_run_history(path));
    }
    if (!page.empty()) NIBBLE_CHECK(write_file_atomically(page, run_page(runs)));
    if (json)
        fmt::print("{}", json_line(comparison_json(runs)));
    else
        print_comparison(runs);
    return Ok{};
}

}  // namespace nibble
