// Starts a run that has a folder: all processes start from the state that the first one finds there.
#pragma once

#include "run/folder.h"

namespace nibble {

struct RunBegin {
    std::unique_ptr<RunFolder> folder;  // in the first process; null in the others
    int64_t first_step = 0;
    bool ended = false;  // all steps were completed earlier, and the result exists
};

// Returns the note about a run that continues after `first_step` steps or finds nothing to resume; else empty.
std::string begin_text(const std::filesystem::path& folder, bool resume, int64_t first_step);

// Returns the note about a run whose steps are already complete.
std::string ended_text(const std::filesystem::path& result, int64_t steps);

// Opens the folder in the first process of `ranks` (null: a single process), then sends its state to the others. All
// processes call it. Errors: those of RunFolder::open(); a process whose options differ from the first one's.
Result<RunBegin> begin_run(const RunFolderOptions& options, const std::filesystem::path& result, RankGroup* ranks,
                           TrainEngine& trainer, BatchSource& data);

}  // namespace nibble
