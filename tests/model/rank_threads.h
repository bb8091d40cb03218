// Ranks as threads of the test.
#pragma once

#include "model/cpu/divided_model.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>

namespace nibble::test {

// Ranks that load a checkpoint with the same options, and what the others return when rank 0 leaves.
class ThreadTeam {
public:
    ThreadTeam(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options, int ranks)
        : checkpoint_(std::move(checkpoint)), options_(options), pool_(1), said_(static_cast<size_t>(ranks)) {
        auto all = thread_ranks(ranks);
        std::vector<std::thread> followers;
        for (size_t r = 1; r < all.size(); ++r)
            followers.emplace_back([this, r, own = std::move(all[r])]() mutable {
                ThreadPool pool(1);
                const Status done = follow(*own, [&](const std::string&) {
                    ModelOptions mine = options_;
                    mine.ranks = own.get();
                    return Model::load(checkpoint_, mine, pool);
                });
                if (!done.ok()) said_[r] = done.error().message();
                own.reset();
            });
        team_ = std::make_shared<RankTeam>(std::move(all[0]), std::move(followers));
    }
    Result<std::unique_ptr<DividedModel>> load() { return DividedModel::load(team_, "", checkpoint_, options_, pool_); }
    // Waits for the other ranks; returns their errors, by rank. All models must have been destroyed.
    std::vector<std::string> end() {
        team_.reset();
        return said_;
    }

private:
    std::shared_ptr<const Checkpoint> checkpoint_;
    ModelOptions options_;
    ThreadPool pool_;
    std::vector<std::string> said_;
    std::shared_ptr<RankTeam> team_;  // first to be destroyed
};

}  // namespace nibble::test
