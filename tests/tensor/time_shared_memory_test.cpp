// Memory that users share by taking turns, on the host: the turn decides, not the possession of an address.
#include "tensor/time_shared_memory.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::shared_ptr<TimeSharedMemory> host_memory(std::shared_ptr<std::vector<std::byte>> bytes) {
    std::byte* base = bytes->data();
    const auto size = std::ssize(*bytes);
    return TimeSharedMemory::create(base, size, std::move(bytes), "updates");
}

bool says(const Status& status, std::string_view text) {
    return !status.ok() && status.error().message().find(text) != std::string::npos;
}

TEST(TimeSharedMemory, OneUserAtATimeHasAllOfIt) {
    const auto bytes = std::make_shared<std::vector<std::byte>>(1024);
    const auto memory = host_memory(bytes);
    auto updates = memory->join("updates", 600);
    auto rollouts = memory->join("rollouts", 1024);
    ASSERT_TRUE(updates.ok() && rollouts.ok());
    EXPECT_EQ(updates->base(), bytes->data());
    EXPECT_EQ(rollouts->base(), bytes->data());  // the same bytes
    EXPECT_TRUE(updates->check().ok());
    EXPECT_TRUE(says(rollouts->check(), "rollouts must not compute while it is the turn of updates"));
    ASSERT_TRUE(memory->give_turn("rollouts").ok());
    EXPECT_TRUE(rollouts->check().ok());
    EXPECT_TRUE(says(updates->check(), "it is the turn of rollouts"));
    EXPECT_TRUE(says(memory->check("updates"), "it is the turn of rollouts"));
    ASSERT_TRUE(memory->give_turn("updates").ok());
    EXPECT_TRUE(updates->check().ok());
    EXPECT_FALSE(rollouts->check().ok());
}

TEST(TimeSharedMemory, UsersAreKnownOnceAndNoLargerThanIt) {
    const auto memory = host_memory(std::make_shared<std::vector<std::byte>>(64));
    EXPECT_TRUE(says(
        memory->join("rollouts", 65).ok() ? Status(Ok{}) : fail("{}", memory->join("rollouts", 65).error().message()),
        "rollouts requests 65 bytes"));
    EXPECT_TRUE(says(memory->give_turn("rollouts"), "no user rollouts"));
    EXPECT_EQ(memory->turn(), "updates");
    {
        auto first = memory->join("rollouts", 64);
        ASSERT_TRUE(first.ok());
        EXPECT_FALSE(memory->join("rollouts", 1).ok());  // a second pool over the same pages
        TimeSharedPart moved = *std::move(first);
        EXPECT_FALSE(memory->join("rollouts", 1).ok());
        EXPECT_EQ(moved.bytes(), 64);
    }
    EXPECT_TRUE(memory->join("rollouts", 1).ok());  // the part ended with its owner
}

TEST(TimeSharedMemory, LivesAsLongAsAPart) {
    auto bytes = std::make_shared<std::vector<std::byte>>(64);
    const std::weak_ptr<std::vector<std::byte>> seen = bytes;
    std::optional<TimeSharedPart> loan;
    {
        const auto memory = host_memory(std::move(bytes));
        auto joined = memory->join("rollouts", 64);
        ASSERT_TRUE(joined.ok());
        loan.emplace(*std::move(joined));
    }
    EXPECT_FALSE(seen.expired());
    loan->base()[63] = std::byte{1};
    loan.reset();
    EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace nibble
