// Flags of `vllm serve` that `nibble serve` does not have under that name.
#pragma once

#include "nibble/serve.h"

#include <CLI/CLI.hpp>

namespace nibble {

// Adds them without showing them in the help. A flag whose meaning nibble has is accepted and sets `options`; another
// one is a usage error that names the next step.
void add_vllm_flags(CLI::App& command, ServeOptions& options);

}  // namespace nibble
