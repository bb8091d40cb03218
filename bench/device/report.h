// What a GPU benchmark writes with --json: {"device": ..., "checks": [...], "timings": [...]}.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string>

namespace nibble::bench {

struct Report {
    Json json = {{"checks", Json::array()}, {"timings", Json::array()}};

    void check(const std::string& name, int64_t compared, int64_t wrong, double worst = 0) {
        json["checks"].push_back({{"name", name}, {"compared", compared}, {"wrong", wrong}, {"worst", worst}});
    }
    void timing(Json entry) { json["timings"].push_back(std::move(entry)); }
    // Nothing where `path` is empty.
    Status write(const std::string& path) const;
};

}  // namespace nibble::bench
