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
// Adds --tensor-parallel-size and its siblings, for commands that call joined().
void add_parallel_flags(CLI::App& command, ModelSettings& settings);
// Adds hidden flags whose only value is 1. Another value is a usage error that names the next step.
void add_refused_degree(CLI::App& command, const std::string& names, const std::string& next_step);
// Connects to the other ranks. Returns true on ranks other than 0, after rank 0 has ended: nothing is left to do.
Result<bool> joined(ModelSettings& settings, const JobHooks& hooks);
// Error: another rank has ended. For commands that wait.
Status ranks_alive(const ModelSettings& settings);
CLI::Option* add_sums_flag(CLI::App& command, std::string& sums);
void add_sampling_flags(CLI::App& command, SamplingSettings& flags);
void add_cache_flags(CLI::App& command, CacheSettings& flags);

}  // namespace nibble
