#include "parallel/stage_chain.h"

#include "support/files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>

namespace nibble::test {
namespace {

using std::chrono::milliseconds;

constexpr int64_t stages = 6, pieces = 5;

std::unique_ptr<StageChain> chain_of(const TempDir& dir, int rank, const std::function<bool()>& stop = {}) {
    auto chain =
        StageChain::open({.folder = dir / "chain", .who = fmt::format("rank {}", rank), .should_stop = stop}, stages);
    EXPECT_TRUE(chain.ok());
    return *std::move(chain);
}

// Stage s adds s + 1 to every value; its result is the sum over its pieces, which depends on their order.
Result<bool> add_one(StageChain::Stage& stage, const std::function<void(int64_t)>& before_piece = {}) {
    float sum = 0;
    for (int64_t i = 0; i < pieces; ++i) {
        std::vector<float> x(4);
        if (before_piece) before_piece(i);
        if (stage.index() == 0) {
            std::iota(x.begin(), x.end(), 0.1f * static_cast<float>(i));
        } else {
            NIBBLE_TRY(const bool there, stage.read(stage.index() - 1, i, x));
            if (!there) return false;
        }
        for (float& value : x) value += static_cast<float>(stage.index() + 1), sum = sum * 1.01f + value;
        NIBBLE_CHECK(stage.write(i, x));
    }
    write_file(stage.results() / "sum", fmt::format("{:a}", sum));
    if (stage.index() > 0) stage.free_later(stage.index() - 1, 0, pieces);
    return true;
}

std::string results(StageChain& chain) {
    std::string text;
    for (int64_t s = 0; s < stages; ++s) {
        const auto folder = chain.results(s);
        EXPECT_TRUE(folder.ok()) << s;
        if (folder.ok()) text += read_file(*folder / "sum") + "\n";
    }
    return text;
}

std::string alone() {
    const TempDir dir;
    const auto chain = chain_of(dir, 0);
    EXPECT_TRUE(chain->run([](StageChain::Stage& stage) { return add_one(stage); }).ok());
    return results(*chain);
}

TEST(StageChain, AnyNumberOfRanksGivesTheResultsOfOne) {
    const std::string expected = alone();
    for (const int ranks : {2, 3, 8}) {
        const TempDir dir;
        std::vector<std::thread> threads;
        std::atomic<int> runs = 0;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                const auto chain = chain_of(dir, rank);
                EXPECT_TRUE(chain->run([&](StageChain::Stage& stage) { return ++runs, add_one(stage); }).ok());
                EXPECT_EQ(results(*chain), expected);
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(runs, stages);
    }
}

TEST(StageChain, PiecesAreRemovedWhenTheyAreNotNeeded) {
    const TempDir dir;
    ASSERT_TRUE(chain_of(dir, 0)->run([](StageChain::Stage& stage) { return add_one(stage); }).ok());
    int64_t left = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "chain"))
        left += entry.path().filename().string().starts_with("piece-");
    EXPECT_EQ(left, pieces);  // output of the last stage, which no stage reads
}

// A process ends while a later stage waits for its pieces. The later stage is given up, and the lost one is repeated.
TEST(StageChain, TheStageOfAnEndedProcessRunsAgain) {
    const std::string expected = alone();
    for (const int64_t victim : {0, 2, 5}) {
        const TempDir dir;
        const pid_t child = ::fork();
        if (child == 0) {
            const auto chain = chain_of(dir, 1);
            const auto ended = chain->run([&](StageChain::Stage& stage) {
                return add_one(stage, [&](int64_t piece) {
                    if (stage.index() == victim && piece == 3) ::_exit(3);
                    std::this_thread::sleep_for(milliseconds(2));
                });
            });
            ::_exit(ended.ok() ? 0 : 1);
        }
        const auto chain = chain_of(dir, 0);
        int status = -1;
        // This process takes a stage only after the child has taken its first, so that the child meets its victim.
        while (!std::filesystem::exists(dir / "chain" / "stage-00000.0")) std::this_thread::sleep_for(milliseconds(1));
        if (victim == 5) ::waitpid(child, &status, 0);
        const auto done = chain->run([](StageChain::Stage& stage) { return add_one(stage); });
        EXPECT_TRUE(done.ok()) << done.error().message();
        EXPECT_EQ(results(*chain), expected) << victim;
        if (victim != 5) ::waitpid(child, &status, 0);
    }
}

TEST(StageChain, AStageThatWaitsStopsOnRequest) {
    const TempDir dir;
    std::filesystem::create_directory(dir / "chain");
    const auto other = Leases::open(dir / "chain", {.who = "other"});
    ASSERT_TRUE(other->take("stage-00000").ok());
    std::atomic<bool> stop = false;
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(100));
        stop = true;
    });
    const auto done =
        chain_of(dir, 0, [&] { return stop.load(); })->run([](StageChain::Stage& stage) { return add_one(stage); });
    later.join();
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().kind(), ErrorKind::cancelled);
}

TEST(StageChain, AnErrorOfAStageEndsTheRankAndFreesTheStage) {
    const TempDir dir;
    const auto failed = chain_of(dir, 0)->run([](StageChain::Stage& stage) -> Result<bool> {
        if (stage.index() == 2) return fail("no space");
        return add_one(stage);
    });
    ASSERT_FALSE(failed.ok());
    const auto chain = chain_of(dir, 1);
    EXPECT_TRUE(chain->run([](StageChain::Stage& stage) { return add_one(stage); }).ok());
    EXPECT_EQ(results(*chain), alone());
}

}  // namespace
}  // namespace nibble::test
