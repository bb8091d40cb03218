#include "run/export.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/convert.h"
#include "run/folder.h"
#include "run/log.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {
namespace {

// Returns the last line of the log with a step, or null.
Json last_logged_step(const std::filesystem::path& output) {
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

ModelCard card_of_run(const RunExport& run, bool codes) {
    ModelCard card{.title = hub_name(run.output), .command = run.command};
    if (!run.base.empty()) {
        card.base_model = hub_name(run.base);
        if (!codes) card.relation = "finetune";
        card.facts.emplace_back("made from", card.base_model);
    }
    card.facts.emplace_back("made by", fmt::format("{}, {} steps", run.how, run.steps));
    card.facts.emplace_back("precision", run.precision);
    const Json step = last_logged_step(run.output);
    for (const auto& [key, name] : {std::pair{"loss", "loss of the last step"},
                                    {"validation", "loss on held-out text"},
                                    {"reward", "mean reward of the last step"}})
        if (step.is_object() && step.contains(key) && step[key].is_number())
            card.facts.emplace_back(name, fmt::format("{:.4f}", step[key].get<double>()));
    return card;
}

}  // namespace

int64_t planned_run_bytes(const Checkpoint& model, int64_t checkpoints_kept, bool adapters) {
    int64_t numbers = 0;
    for (const CheckpointTensor& t : model.tensors()) {
        int64_t elements = 1;
        for (const int64_t size : t.shape) elements *= size;
        numbers += elements;
    }
    const int64_t state = 12, written = 2;  // bytes per number: an F32 master with two F32 moments; a BF16 weight
    const int64_t checkpoints = adapters ? 0 : std::min<int64_t>(checkpoints_kept, 1) * 2;
    return (checkpoints * state + written) * numbers;
}

std::filesystem::path codes_folder(const std::filesystem::path& output, Format format) {
    return output / fmt::format("model-{}", format_name(format));
}

Status write_run_export(const RunExport& run, const Checkpoint& model, const std::filesystem::path& out,
                        ThreadPool& pool) {
    NIBBLE_CHECK(RunFolder::clear_export(out, run.resumed));
    const bool codes = model.dialect() != Dialect::plain;
    NIBBLE_CHECK(convert(model,
                         {.to = model.dialect(), .out = out, .manifest = run.manifest, .card = card_of_run(run, codes)},
                         pool, {}));
    return Ok{};
}

}  // namespace nibble
