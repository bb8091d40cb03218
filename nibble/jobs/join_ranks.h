// Runs a model on several ranks: processes that a launcher started, or threads of this process.
#pragma once

#include "base/progress.h"
#include "model/cpu/divided_model.h"
#include "nibble/model_settings.h"

#include <memory>
#include <string>

namespace nibble {

// Connects to the other ranks, if a launcher started this process as one of several and `settings` asks for them.
// Rank 0 gets ModelSettings::team. The others do what rank 0 decides, until it ends; then the result is true. Sets
// ModelSettings::threads to this rank's share of the cores, if it is 0. `identity`: of the program; must be equal on
// all ranks. Errors: another number of processes, ranks that do not come, and those of follow().
Result<bool> join_ranks(ModelSettings& settings, const std::string& identity, const JobHooks& hooks);

// Loads a model on the ranks of ModelSettings::team, or on threads of this process. Notes of the memory of each rank go
// to the hooks before. Error: the model cannot be divided so.
Result<std::unique_ptr<LanguageModel>> load_divided(std::shared_ptr<const Checkpoint> checkpoint,
                                                    const ModelSettings& settings, const ModelOptions& options,
                                                    ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
