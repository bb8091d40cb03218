// A model loaded to be served: for `nibble serve`, and for `nibble bench serve` with a server of its own.
#pragma once

#include "cli/engine.h"
#include "server/served_model.h"

#include <optional>

namespace nibble {

struct ServedFlags {
    std::string path;
    std::vector<std::string> names;                  // empty: the path's last part
    std::string tools = "auto", reasoning = "auto";  // ChatOptions'
    bool parse_special = false;                      // control tokens count in messages, too
    int64_t context = 0, sequences = 0, queue = 1024;
    std::optional<double> stretch;  // EngineOptions::stretch; none: 3 on a GPU, 0 on a CPU
    EngineFlags engine;
    CacheFlags cache;
};
// The pool outlives the model. What the server chose is in `facts`.
Result<ServedModel> load_served(const ServedFlags& flags, ThreadPool& pool);

}  // namespace nibble
