// Writes the counters of server and engine in Prometheus' text format, with vLLM's names.
#pragma once

#include "server/exchange.h"

namespace nibble {

std::string metrics_text(const ServerCore& core, const ServedModel* model);

}  // namespace nibble
