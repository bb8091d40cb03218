// The page of a run of reinforcement learning, from its folder: the log (rl/rl_log.h) and the samples
// (rl/rl_samples.h). It stands alone, as all pages do (page/html.h).
#pragma once

#include "run/folder.h"

namespace nibble {

// Error: no log, a log without steps, a line or samples that are not what this program writes (names the file).
Result<std::string> rl_page(const std::filesystem::path& folder, int reload_seconds = 0);

// That page, and the metrics in TensorBoard under NeMo RL's names where it has them (train/, validation/,
// timing/train/).
RunView rl_view();

}  // namespace nibble
