// Flags of commands that run a model.
#pragma once

#include "chat/prompt_tokens.h"
#include "cli/command.h"
#include "jobs/loaded_model.h"
#include "jobs/sampling.h"

#include <string>

namespace nibble {

struct EngineFlags : ModelSettings {
    bool quiet = false;
};
void add_engine_flags(CLI::App& command, ModelSettings& settings, bool& quiet);
void add_engine_flags(CLI::App& command, EngineFlags& flags);
CLI::Option* add_sums_flag(CLI::App& command, std::string& sums);
void add_sampling_flags(CLI::App& command, SamplingSettings& flags);
void add_cache_flags(CLI::App& command, CacheSettings& flags);

}  // namespace nibble
