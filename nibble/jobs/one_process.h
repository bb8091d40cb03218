// For jobs that several ranks cannot divide.
#pragma once

#include "base/error.h"
#include "parallel/rank_place.h"

#include <string_view>

namespace nibble {

// Error of kind usage: a launcher started this process as one of several, which would all do the same work. `job`: as
// in messages, "nibble search".
inline Status need_one_process(std::string_view job) {
    NIBBLE_TRY(const RankPlace place, rank_place());
    if (place.alone()) return Ok{};
    return fail(ErrorKind::usage,
                "{} works on the whole model in one process, but a launcher started {} (docs/guides/several-ranks.md)",
                job, place.size);
}

}  // namespace nibble
