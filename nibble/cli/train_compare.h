// `nibble train --compare RUN...`: several runs side by side.
#pragma once

#include "base/error.h"

#include <string>
#include <vector>

namespace nibble {

// Prints a line a run and writes a page of all to `page` (empty: none). Runs of one group (equal but for their seed)
// are one row of the table of gaps.
Status compare_runs(const std::vector<std::string>& runs, const std::string& page, bool json);

}  // namespace nibble
