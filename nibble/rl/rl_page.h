// Renders the page of an RL run from its folder: the log (rl/rl_log.h) and the samples (rl/rl_samples.h). Like all
// pages, it is one self-contained file (page/html.h).
#pragma once

#include "run/folder.h"

namespace nibble {

// Errors (naming the file): no log; a log without steps; a line or samples in an unknown form.
Result<std::string> rl_page(const std::filesystem::path& folder, int reload_seconds = 0);

// Returns the functions of the run viewer for RL: this page, and metrics for TensorBoard under NeMo RL's names where it
// has them (train/, validation/, timing/train/).
RunView rl_view();

}  // namespace nibble
