// The values that a resumed run must share with its checkpoint.
#pragma once

#include "base/json.h"

#include <functional>
#include <string>

namespace nibble {

struct RunIdentity {
    std::string text;  // JSON, stored with every checkpoint: the config's values, hashes of data and of frozen weights
    // Facts that another version of nibble stored, as this version states them; error: this version cannot. Empty: they
    // are compared as they are stored.
    std::function<Result<Json>(const Json& stored)> restate;
};

// Empty: `stored` is the text of the same run. Else the facts that differ: "config/steps: 6 there, 7 now; ...".
std::string identity_differences(const RunIdentity& now, const std::string& stored);

}  // namespace nibble
