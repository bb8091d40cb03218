#include "parallel/lease.h"

#include "support/files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

namespace nibble::test {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Leases> leases_of(const TempDir& dir, const std::string& who,
                                  milliseconds expiry = milliseconds(60'000)) {
    return Leases::open(dir.path(), {.who = who, .expiry = expiry});
}

// Returns N, -1 if another process holds the lease, or -2 for an error.
int taken(Leases& leases, const std::string& name) {
    const auto number = leases.take(name);
    if (!number.ok()) return -2;
    return number->value_or(-1);
}

TEST(Leases, OneHolderAtATimeAndANumberPerHolder) {
    const TempDir dir;
    const auto first = leases_of(dir, "rank 0"), second = leases_of(dir, "rank 1");
    EXPECT_EQ(taken(*first, "work"), 0);
    EXPECT_EQ(taken(*second, "work"), -1);
    EXPECT_EQ(taken(*second, "other work"), 0);
    first->release("work");
    EXPECT_FALSE(second->holder("work"));
    EXPECT_EQ(taken(*second, "work"), 1);
    EXPECT_EQ(taken(*first, "work"), -1);
}

TEST(Leases, TheHolderIsNamedWithItsFacts) {
    const TempDir dir;
    const auto first = leases_of(dir, "rank 0"), second = leases_of(dir, "rank 1");
    ASSERT_TRUE(first->take("work", {{"recipe", "nvfp4"}}).ok());
    const auto holder = second->holder("work");
    ASSERT_TRUE(holder);
    EXPECT_TRUE(holder->text.starts_with(fmt::format("rank 0 (process {} on ", ::getpid()))) << holder->text;
    EXPECT_EQ(holder->facts, Json({{"recipe", "nvfp4"}}));
    EXPECT_TRUE(holder->here);
    EXPECT_FALSE(holder->ended);
    EXPECT_FALSE(second->holder("nothing"));
}

TEST(Leases, AnEndedProcessLosesItsLeaseAtOnce) {
    const TempDir dir;
    const pid_t child = ::fork();
    if (child == 0) {
        const auto leases = leases_of(dir, "rank 1");
        ::_exit(taken(*leases, "work"));  // without releasing it
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    const auto leases = leases_of(dir, "rank 0");
    EXPECT_TRUE(leases->holder("work")->ended);
    EXPECT_EQ(taken(*leases, "work"), 1);
}

TEST(Leases, ALeaseOfAnotherMachineIsFreeWhenItsTimeStandsStill) {
    const TempDir dir;
    write_file(dir / "work.0",
               R"({"who": "rank 1", "host": "far", "machine": "far", "process": 1, "started": 1, "expiry_ms": 1})");
    write_file(dir / "torn.0", "{\"who\": \"ra");
    const auto leases = leases_of(dir, "rank 0", milliseconds(150));
    EXPECT_EQ(taken(*leases, "work"), -1);
    EXPECT_EQ(taken(*leases, "torn"), -1);
    EXPECT_EQ(leases->holder("work")->text, "rank 1 (process 1 on far)");
    EXPECT_FALSE(leases->holder("work")->here);
    std::this_thread::sleep_for(milliseconds(250));
    EXPECT_EQ(taken(*leases, "work"), 1);
    EXPECT_EQ(taken(*leases, "torn"), 1);
}

TEST(Leases, ALivingHolderKeepsItsLeaseBeyondTheExpiryTime) {
    const TempDir dir;
    const auto first = leases_of(dir, "rank 0", milliseconds(600)),
               second = leases_of(dir, "rank 1", milliseconds(600));
    ASSERT_EQ(taken(*first, "work"), 0);
    for (int i = 0; i < 15; ++i) {
        ASSERT_EQ(taken(*second, "work"), -1) << i;
        std::this_thread::sleep_for(milliseconds(100));
    }
}

TEST(Leases, OneOfManyProcessesTakesEachNumber) {
    const TempDir dir;
    constexpr int processes = 6, names = 40;
    std::array<pid_t, processes> children{};
    for (int p = 0; p < processes; ++p) {
        children[static_cast<size_t>(p)] = ::fork();
        if (children[static_cast<size_t>(p)] != 0) continue;
        const auto leases = leases_of(dir, fmt::format("rank {}", p));
        int mine = 0;
        for (int i = 0; i < names; ++i) mine += taken(*leases, fmt::format("file-{}", i)) == 0;
        write_file(dir / fmt::format("count-{}", p), std::to_string(mine));
        ::_exit(0);
    }
    int total = 0;
    for (int p = 0; p < processes; ++p) {
        int status = -1;
        ::waitpid(children[static_cast<size_t>(p)], &status, 0);
        ASSERT_EQ(status, 0);
        total += std::stoi(read_file(dir / fmt::format("count-{}", p)));
    }
    EXPECT_EQ(total, names);
}

// Reading the state of a process fails if the process ends after /proc/N/stat was opened.
TEST(Leases, AHolderThatEndsWhileAnotherProcessLooksIsFound) {
    const TempDir dir;
    for (int i = 0; i < 60; ++i) {
        const std::string name = fmt::format("work-{}", i);
        const pid_t child = ::fork();
        if (child == 0) {
            const auto leases = leases_of(dir, "rank 1");
            ::_exit(taken(*leases, name));
        }
        std::thread parent([&] { ::waitpid(child, nullptr, 0); });
        const auto leases = leases_of(dir, "rank 0");
        for (std::optional<LeaseHolder> holder; !holder || !holder->ended;) holder = leases->holder(name);
        EXPECT_EQ(taken(*leases, name), 1);
        parent.join();
    }
}

TEST(Leases, AFolderThatIsGoneIsAnError) {
    const TempDir dir;
    const auto leases = Leases::open(dir / "missing", {.who = "rank 0"});
    const auto number = leases->take("work");
    ASSERT_FALSE(number.ok());
    EXPECT_NE(number.error().message().find("cannot create"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
