// `nibble train --compare RUN...`: compares several runs.
#pragma once

#include "base/error.h"

#include <string>
#include <vector>

namespace nibble {

// Prints a line per run and writes a page with all runs to `page` (empty: none). Runs of one group (equal except for
// their seed) share a row in the table of gaps. Error: a run that cannot be read.
Status compare_runs(const std::vector<std::string>& runs, const std::string& page, bool json);

}  // namespace nibble
