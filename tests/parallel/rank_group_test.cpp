// Ranks are threads here, each with its own group; tests/train/ranks_test.cpp tests whole processes.
#include "parallel/rank_group.h"

#include "support/files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

namespace nibble {
namespace {

RankBytes bytes_of(const std::string& text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    return {p, p + text.size()};
}
std::string text_of(const RankBytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Returns the result of every rank's work: "" or an error.
std::vector<std::string> run_ranks(int size, const std::string& address,
                                   const std::function<Status(RankGroup& group)>& work,
                                   const std::function<RankGroup::Options(int)>& options = {}) {
    std::vector<std::string> said(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
            const auto group = RankGroup::meet({.rank = r, .size = size, .address = address},
                                               options ? options(r) : RankGroup::Options{});
            const Status done = group.ok() ? work(**group) : Status(group.error());
            if (!done.ok()) said[static_cast<size_t>(r)] = done.error().message();
        });
    for (std::thread& t : threads) t.join();
    return said;
}

class RankGroupTest : public testing::TestWithParam<int> {
protected:
    std::string meet() { return "unix:" + (dir / "meet").string(); }
    test::TempDir dir;
};

TEST_P(RankGroupTest, EveryCallGivesEveryRankWhatItShould) {
    const int size = GetParam();
    const auto said = run_ranks(size, meet(), [&](RankGroup& g) -> Status {
        for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
            std::vector<RankBytes> to;
            const auto message = [&](int from, int towards) {
                return std::string(bytes + static_cast<size_t>(from), static_cast<char>('a' + 7 * from + towards));
            };
            for (int r = 0; r < size; ++r) to.push_back(bytes_of(message(g.rank(), r)));
            NIBBLE_TRY(const auto from, g.exchange(std::move(to)));
            for (int r = 0; r < size; ++r)
                if (text_of(from[static_cast<size_t>(r)]) != message(r, g.rank())) return fail("exchange of {}", bytes);
        }
        NIBBLE_TRY(const auto all, g.gather(bytes_of(std::to_string(g.rank()))));
        for (int r = 0; r < size; ++r)
            if (text_of(all[static_cast<size_t>(r)]) != std::to_string(r)) return fail("gather");
        NIBBLE_TRY(const auto shared, g.share(bytes_of("from " + std::to_string(g.rank()))));
        if (text_of(shared) != "from 0") return fail("share");
        NIBBLE_TRY(const bool none, g.any(false));
        NIBBLE_TRY(const bool one, g.any(g.rank() == g.size() - 1));
        if (none || !one) return fail("any");
        return Ok{};
    });
    for (const std::string& one : said) EXPECT_EQ(one, "");
}

TEST_P(RankGroupTest, ARankThatEndsIsNamedByAllOthers) {
    const int size = GetParam();
    if (size == 1) return;
    const auto said = run_ranks(size, meet(), [&](RankGroup& g) -> Status {
        NIBBLE_CHECK(g.alive());
        NIBBLE_CHECK(g.any(false));
        if (g.rank() == size - 1) return Ok{};  // destroys its group, as when its process ends
        while (g.alive().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        NIBBLE_CHECK(g.gather({}));
        return Ok{};
    });
    for (int r = 0; r + 1 < size; ++r) {
        const std::string& one = said[static_cast<size_t>(r)];
        EXPECT_NE(one.find("has ended"), std::string::npos) << r << ": " << one;
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankGroupTest, testing::Values(1, 2, 3, 5));

TEST(RankMeetings, RanksOfOtherJobsAndOtherNumbersAreRefusedWithTheReason) {
    test::TempDir dir;
    const std::string address = "unix:" + (dir / "meet").string();
    auto said = run_ranks(
        2, address, [](RankGroup&) -> Status { return Ok{}; },
        [](int rank) { return RankGroup::Options{.identity = rank == 0 ? "steps 5" : "steps 6"}; });
    for (const std::string& one : said) EXPECT_EQ(one, "rank 1 is of another job: steps 6 there, steps 5 in rank 0");
    std::vector<std::string> of_sizes(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
            const auto g = RankGroup::meet({.rank = r, .size = 2 + r, .address = address + "2"}, {});
            if (!g.ok()) of_sizes[static_cast<size_t>(r)] = g.error().message();
        });
    for (std::thread& t : threads) t.join();
    for (const std::string& one : of_sizes) EXPECT_EQ(one, "rank 1 knows of 3 ranks, rank 0 of 2");
}

TEST(RankMeetings, EndInBoundedTime) {
    test::TempDir dir;
    const RankGroup::Options soon{.meeting = std::chrono::milliseconds(300)};
    const auto alone = RankGroup::meet({.rank = 0, .size = 3, .address = "unix:" + (dir / "a").string()}, soon);
    ASSERT_FALSE(alone.ok());
    EXPECT_NE(alone.error().message().find("only 1 of 3 ranks came"), std::string::npos) << alone.error().message();
    const auto nobody = RankGroup::meet({.rank = 1, .size = 2, .address = "unix:" + (dir / "b").string()}, soon);
    ASSERT_FALSE(nobody.ok());
    EXPECT_NE(nobody.error().message().find("No such file"), std::string::npos) << nobody.error().message();
}

// A rank that connects but sends nothing.
TEST(RankMeetings, SilenceIsBoundedToo) {
    test::TempDir dir;
    const auto said = run_ranks(
        2, "unix:" + (dir / "meet").string(),
        [](RankGroup& g) -> Status {
            if (g.rank() == 1) {
                std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                return Ok{};
            }
            NIBBLE_CHECK(g.gather({}));
            return Ok{};
        },
        [](int) { return RankGroup::Options{.patience = std::chrono::milliseconds(500)}; });
    EXPECT_EQ(said[0], "rank 1 of 2 has sent nothing for 0 s");
}

// Ranks that only compute for long do not stand still.
TEST(RankMeetings, ARankThatComputesForLongDoesNotStandStill) {
    for (const bool tcp : {false, true}) {
        test::TempDir dir;
        const auto said = run_ranks(
            3, tcp ? "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000) : "unix:" + (dir / "meet").string(),
            [](RankGroup& g) -> Status {
                if (g.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                NIBBLE_CHECK(g.alive());
                NIBBLE_CHECK(g.gather({}));
                return Ok{};
            },
            [](int) { return RankGroup::Options{.silence = std::chrono::milliseconds(500)}; });
        for (const std::string& one : said) EXPECT_EQ(one, "");
    }
}

// The other end of rank 1 ends, that of rank 2 sends nothing.
TEST(RankBeats, ARankThatStandsStillIsFound) {
    int ended[2], still[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ended), 0);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, still), 0);
    ::close(ended[1]);
    const RankBeat beat({{1, ended[0]}, {2, still[0]}}, std::chrono::milliseconds(300));
    EXPECT_EQ(beat.silent(), -1);
    for (int i = 0; i < 1000 && beat.silent() < 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(beat.silent(), 2);
    ::close(still[1]);
}

// Another program that connects to the port is not taken for a rank.
TEST(RankMeetings, StrangersDoNotDisturb) {
    test::TempDir dir;
    const std::string path = (dir / "meet").string();
    std::thread stranger([&] {
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
        for (int tries = 0; tries < 200; ++tries) {
            const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
            if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) {
                const char text[] = "GET / HTTP/1.1\r\nHost: nobody\r\nAccept: everything\r\n\r\n";
                EXPECT_EQ(::send(fd, text, sizeof text, MSG_NOSIGNAL), ssize_t(sizeof text));
                ::close(fd);
                return;
            }
            ::close(fd);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    });
    std::vector<std::string> said(2);
    std::thread first([&] {
        const auto g = RankGroup::meet({.rank = 0, .size = 2, .address = "unix:" + path}, {});
        if (!g.ok()) said[0] = g.error().message();
        if (g.ok()) {
            EXPECT_TRUE((*g)->any(false).ok());
        }
    });
    stranger.join();
    const auto g = RankGroup::meet({.rank = 1, .size = 2, .address = "unix:" + path}, {});
    ASSERT_TRUE(g.ok()) << g.error().message();
    EXPECT_TRUE((*g)->any(false).ok());
    first.join();
    EXPECT_EQ(said[0], "");
}

}  // namespace
}  // namespace nibble
