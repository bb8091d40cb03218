// The server's and the engine's counters as Prometheus reads them, under vLLM's names.
#pragma once

#include "server/exchange.h"

namespace nibble {

std::string metrics_text(const ServerCore& core, const ServedModel* model);

}  // namespace nibble
