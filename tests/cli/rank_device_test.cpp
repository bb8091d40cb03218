// Which GPU a rank uses, by launcher and by the visible GPUs.
#include "run/rank_device.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(RankDevice, IsTheRanksOwnForEveryLauncher) {
    struct Case {
        const char* what;
        int wanted;
        RankPlace place;
        int first, visible;
        std::optional<int> index;  // no value: an error
    };
    const Case cases[] = {
        {"one process", 0, {}, 0, 1, 0},
        {"one process on a chosen GPU", 0, {}, 2, 4, 2},
        {"--gpus 4, the process that starts the others", 4, {}, 0, 4, 0},
        {"--gpus 2 on a machine with one", 2, {}, 0, 1, {}},
        {"--gpus 2 from the last GPU on", 2, {}, 3, 4, {}},
        {"a rank that was started here", 4, {.rank = 3, .size = 4, .local_rank = 3, .local_size = 4}, 0, 4, 3},
        {"a rank from the second GPU on", 2, {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2}, 1, 4, 2},
        {"srun, all GPUs shown", 0, {.rank = 5, .size = 8, .local_rank = 1, .local_size = 4}, 0, 4, 1},
        {"srun --gpus-per-task=1", 0, {.rank = 5, .size = 8, .local_rank = 1, .local_size = 4}, 0, 1, 0},
        {"srun --gpus-per-task=2", 0, {.rank = 3, .size = 4, .local_rank = 3, .local_size = 4}, 0, 2, 1},
        {"srun without --ntasks-per-node", 0, {.rank = 2, .size = 4, .local_rank = 0}, 0, 2, 0},
        {"manually started ranks on two machines", 0, {.rank = 3, .size = 4}, 0, 2, 1},
    };
    for (const Case& c : cases) {
        const auto index = rank_device_index(c.wanted, c.place, c.first, c.visible);
        EXPECT_EQ(index.ok() ? std::optional(*index) : std::nullopt, c.index) << c.what;
    }
}

TEST(RankDevice, TwoRanksOnOneGpuAreAnErrorThatNamesThem) {
    const std::string cards[] = {"aa", "bb", "cc", "bb"}, own[] = {"aa", "bb"}, unknown[] = {"", ""};
    const Status shared = check_distinct_devices(cards);
    ASSERT_FALSE(shared.ok());
    EXPECT_EQ(shared.error().message(), "ranks 1 and 3 have the same GPU (bb); start one rank per GPU");
    EXPECT_TRUE(check_distinct_devices(own).ok());
    EXPECT_TRUE(check_distinct_devices(unknown).ok());
}

}  // namespace
}  // namespace nibble
