// The jobs by name, with options and results as JSON, for callers without the types of the public headers: the C
// interface and the Python package.
#pragma once

#include "base/json.h"
#include "nibble/reinforce.h"
#include "nibble/serve.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct NamedJobHooks {
    JobHooks job;
    std::function<void(const std::string& json)> on_step;  // train, reinforce: the line of the run's log
    decltype(RlHooks::judge) judge;                        // reinforce
};

// quantize, calibrate, convert, import_gguf, verify, evaluate, search, inspect, train, reinforce, recipes.
std::vector<std::string_view> job_names();
// Returns the options of a job with their defaults. Error of kind usage: there is no such job.
Result<Json> job_defaults(std::string_view job);
// Runs a job. The result has the members of its report; `text` is for people, `json` a document as text. A number
// that is not finite is a text: inf, -inf, nan. Errors: those of the job; an option that does not exist or has another
// type.
Result<Json> run_named_job(std::string_view job, const Json& options, const NamedJobHooks& hooks);

// The options of serve() and of a model in this process.
Result<ServeOptions> serve_options_of(const Json& options, std::string_view caller);
Json serve_defaults();

}  // namespace nibble
