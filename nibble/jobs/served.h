// A model that is loaded to be served.
#pragma once

#include "jobs/sampling.h"
#include "server/served_model.h"

#include <optional>

namespace nibble {

struct ServedSettings {
    std::string path;
    std::vector<std::string> names;                  // of the model for clients; empty: the path's last part
    std::string tools = "auto", reasoning = "auto";  // ChatOptions'
    bool parse_special = false;                      // control tokens count in messages, too
    int64_t context = 0;                             // most tokens of a prompt and its answer; 0: the model's
    int64_t sequences = 0;                           // answers that run together; 0: the engine's choice
    int64_t queue = 1024;                            // answers that wait
    std::optional<double> stretch;                   // EngineOptions::stretch; none: 3 on a GPU, 0 on a CPU
    ModelSettings engine;
    CacheSettings cache;
};

// The pool outlives the model. ServedModel::facts has the formats, kernels and limits that were chosen.
Result<ServedModel> load_served(const ServedSettings& settings, ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
