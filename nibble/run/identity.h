// The values that a resumed run must share with its checkpoint.
#pragma once

#include "base/json.h"

#include <functional>
#include <string>

namespace nibble {

struct RunIdentity {
    std::string text;  // JSON, stored with every checkpoint: values of the config, hashes of data and of frozen weights
    // Converts facts that another version of nibble stored to the form of this version, or returns an error if it
    // cannot. Empty: stored facts are compared unchanged.
    std::function<Result<Json>(const Json& stored)> restate;
};

// Returns "" if `stored` belongs to the same run, else the facts that differ: "config/steps: 6 in the checkpoint, 7
// now; ...".
std::string identity_differences(const RunIdentity& now, const std::string& stored);

}  // namespace nibble
