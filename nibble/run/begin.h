// The beginning of a run that has a folder: all processes start from the state that the first one finds there.
#pragma once

#include "run/folder.h"

namespace nibble {

struct RunBegin {
    std::unique_ptr<RunFolder> folder;  // of the first process; null in the others
    int64_t first_step = 0;
    bool ended = false;  // the run has made all its steps earlier, and `result` is there
};

// Returns the note about a run that continues after `first_step` steps or finds nothing to resume; else empty.
std::string begin_text(const std::filesystem::path& folder, bool resume, int64_t first_step);

// Returns the note about a run whose steps are already complete.
std::string ended_text(const std::filesystem::path& result, int64_t steps);

// Opens the folder in the first process of `ranks` (null: there is one), then gives the others its state. All processes
// call it. Errors: as RunFolder::open(); a process that has other options than the first.
Result<RunBegin> begin_run(const RunFolderOptions& options, const std::filesystem::path& result, RankGroup* ranks,
                           TrainEngine& trainer, BatchSource& data);

}  // namespace nibble
