// A model that is loaded to be served.
#pragma once

#include "base/thread_pool.h"
#include "nibble/serve.h"
#include "server/served_model.h"

namespace nibble {

// Uses the options for the model; ignores addresses, keys and limits of requests. The pool outlives
// the model. ServedModel::facts has the formats, kernels and limits that were chosen.
Result<ServedModel> load_served(const ServeOptions& options, ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
