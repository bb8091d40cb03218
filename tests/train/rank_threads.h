// Runs ranks as threads of a test.
#pragma once

#include "parallel/rank_group.h"
#include "support/files.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace nibble::test {

// Returns, for each of `size` ranks, the error message of `work`, or "" for success. With size 1 there is no group.
inline std::vector<std::string> run_ranks(int size, const std::function<Status(RankGroup* group, int rank)>& work) {
    std::vector<std::string> errors(static_cast<size_t>(size));
    const auto note = [&](int rank, const Status& done) {
        if (!done.ok()) errors[static_cast<size_t>(rank)] = done.error().message();
    };
    if (size == 1) {
        note(0, work(nullptr, 0));
        return errors;
    }
    TempDir dir;
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
            const auto group =
                RankGroup::meet({.rank = r, .size = size, .address = "unix:" + (dir / "meet").string()}, {});
            note(r, group.ok() ? work(group->get(), r) : Status(group.error()));
        });
    for (std::thread& t : threads) t.join();
    return errors;
}

}  // namespace nibble::test
