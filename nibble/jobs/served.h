// Loads a model for serving.
#pragma once

#include "base/thread_pool.h"
#include "nibble/serve.h"
#include "server/served_model.h"

namespace nibble {

// Loads the model with the options for models; ignores addresses, keys and limits of requests. The pool must outlive
// the result. ServedModel::facts contains the chosen formats, kernels and limits. Errors: see serve().
Result<ServedModel> load_served(const ServeOptions& options, ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
