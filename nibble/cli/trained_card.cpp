#include "cli/trained_card.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "run/log.h"

#include <fmt/core.h>

namespace nibble {
namespace {

// The last line of the log that has a step; null without one.
Json last_step(const std::filesystem::path& output) {
    const auto log = MappedFile::open(output / run_log_name);
    if (!log.ok()) return nullptr;
    std::string_view text(reinterpret_cast<const char*>(log->bytes().data()), log->bytes().size());
    while (!text.empty()) {
        const size_t end = text.find_last_not_of('\n');
        if (end == text.npos) break;
        text = text.substr(0, end + 1);
        const size_t begin = text.rfind('\n');
        const std::string_view line = begin == text.npos ? text : text.substr(begin + 1);
        if (auto json = parse_json(line); json.ok() && json->is_object() && json->contains("step")) return *json;
        text = begin == text.npos ? std::string_view{} : text.substr(0, begin);
    }
    return nullptr;
}

}  // namespace

ModelCard trained_card(const TrainedCard& run, bool codes) {
    ModelCard card{.title = hub_name(run.output), .command = run.command};
    if (!run.base.empty()) {
        card.base_model = hub_name(run.base);
        if (!codes) card.relation = "finetune";
        card.facts.emplace_back("made from", card.base_model);
    }
    card.facts.emplace_back("made by", fmt::format("{}, {} steps", run.how, run.steps));
    card.facts.emplace_back("precision", run.precision);
    const Json step = last_step(run.output);
    for (const auto& [key, name] : {std::pair{"loss", "loss of the last step"},
                                    {"validation", "loss on held-out text"},
                                    {"reward", "mean reward of the last step"}})
        if (step.is_object() && step.contains(key) && step[key].is_number())
            card.facts.emplace_back(name, fmt::format("{:.4f}", step[key].get<double>()));
    return card;
}

}  // namespace nibble
