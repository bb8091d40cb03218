// The calls of Communicator over sockets and over the threads of one process. Ranks are threads in both cases.
#include "parallel/rank_group.h"

#include "support/files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <thread>

namespace nibble {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

RankBytes payload_of(const std::string& text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    return {p, p + text.size()};
}
std::string text_in(const RankBytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

using Work = std::function<Status(Communicator& ranks)>;

class Ranks : public testing::TestWithParam<const char*> {
protected:
    // Returns the result of every rank's work: "" or an error.
    std::vector<std::string> run(int size, const Work& work) {
        auto own = std::string_view(GetParam()) == "threads" ? thread_ranks(size)
                                                             : std::vector<std::unique_ptr<Communicator>>(size_t(size));
        std::vector<std::string> said(static_cast<size_t>(size));
        std::vector<std::thread> threads;
        for (int r = 0; r < size; ++r)
            threads.emplace_back([&, r] {
                std::unique_ptr<Communicator>& mine = own[size_t(r)];
                if (!mine) {
                    RankPlace place;
                    place.rank = r, place.size = size, place.address = address();
                    auto group = RankGroup::meet(place, {});
                    ASSERT_TRUE(group.ok()) << group.error().message();
                    mine = *std::move(group);
                }
                const Status done = work(*mine);
                if (!done.ok()) said[size_t(r)] = done.error().message();
                mine.reset();
            });
        for (std::thread& t : threads) t.join();
        return said;
    }
    std::string address() const { return "unix:" + (folder_.path() / "meet").string(); }

private:
    test::TempDir folder_;
};

// Gathers texts of the given lengths.
Result<std::vector<std::string>> gather(Communicator& ranks, const std::string& own, std::vector<size_t> sizes) {
    std::vector<RankBytes> all;
    for (const size_t size : sizes) all.emplace_back(size);
    std::vector<std::span<std::byte>> parts(all.begin(), all.end());
    NIBBLE_CHECK(ranks.gather_into(payload_of(own), parts));
    all[size_t(ranks.rank())] = payload_of(own);
    std::vector<std::string> texts;
    for (const RankBytes& one : all) texts.push_back(text_in(one));
    return texts;
}

TEST_P(Ranks, GatherBytesOfDifferentSizes) {
    const std::string large(3 << 20, 'x');
    EXPECT_THAT(run(4,
                    [&](Communicator& ranks) -> Status {
                        for (int round = 0; round < 50; ++round) {
                            const std::string own = ranks.rank() == 2 && round == 7
                                                        ? large
                                                        : std::string(size_t(ranks.rank()), char('a' + round % 26));
                            const size_t third = round == 7 ? large.size() : 2;
                            NIBBLE_TRY(const auto all, gather(ranks, own, {0, 1, third, 3}));
                            const std::string letter(1, char('a' + round % 26));
                            if (all[0] != "" || all[1] != letter || all[3] != letter + letter + letter ||
                                all[2] != (round == 7 ? large : letter + letter))
                                return fail("round {}: wrong bytes", round);
                        }
                        return Ok{};
                    }),
                Each(""));
}

TEST_P(Ranks, RecordsArriveInOrder) {
    EXPECT_THAT(run(3,
                    [&](Communicator& ranks) -> Status {
                        for (int i = 0; i < 20; ++i) {
                            const std::string text = std::string(size_t(i), '.') + "record";
                            if (ranks.rank() == 0) {
                                NIBBLE_CHECK(ranks.send_record(payload_of(text)));
                                continue;
                            }
                            NIBBLE_TRY(const RankBytes got, ranks.next_record());
                            if (text_in(got) != text) return fail("{} instead of {}", text_in(got), text);
                        }
                        NIBBLE_TRY(const auto last, gather(ranks, "x", {1, 1, 1}));
                        return Ok{};
                    }),
                Each(""));
}

TEST_P(Ranks, OtherSizesThanExpectedAreAnError) {
    const auto said = run(2, [](Communicator& ranks) -> Status {
        NIBBLE_TRY(const auto all, gather(ranks, ranks.rank() == 0 ? "x" : "xy", {1, 1}));
        return Ok{};
    });
    EXPECT_THAT(said[0], HasSubstr("rank 1 of 2 is at another exchange than rank 0"));
}

TEST_P(Ranks, ARankThatEndsDuringAnExchangeIsNamedByAllOthers) {
    for (const int ended : {0, 1, 3}) {
        const auto said = run(4, [&](Communicator& ranks) -> Status {
            NIBBLE_TRY(const auto all, gather(ranks, "x", {1, 1, 1, 1}));
            if (ranks.rank() == ended) return Ok{};
            const auto more = gather(ranks, "y", {1, 1, 1, 1});
            return ranks.rank() == 0 ? ranks.send_record(payload_of("z")) : ranks.next_record().error();
        });
        for (int r = 0; r < 4; ++r)
            EXPECT_THAT(said[size_t(r)], r == ended ? std::string()
                                                    : fmt::format("rank {} of 4 has ended; its own "
                                                                  "message has the reason",
                                                                  ended));
    }
}

TEST_P(Ranks, ARankThatEndsWhileOthersWaitForARecordIsNamedByAll) {
    for (const int ended : {0, 1, 3}) {
        const auto said = run(4, [&](Communicator& ranks) -> Status {
            NIBBLE_TRY(const auto all, gather(ranks, "x", {1, 1, 1, 1}));
            if (ranks.rank() == ended) return Ok{};
            if (ranks.rank() > 0) {
                NIBBLE_TRY(const RankBytes record, ranks.next_record());
                return Ok{};
            }
            while (ranks.alive().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return ranks.send_record(payload_of("the last one"));
        });
        for (int r = 0; r < 4; ++r) {
            if (r == ended) continue;
            EXPECT_THAT(said[size_t(r)], HasSubstr(fmt::format("rank {} of 4 has ended", ended)));
        }
    }
}

TEST_P(Ranks, AliveNotesAnEndWithoutAnExchange) {
    const auto said = run(2, [](Communicator& ranks) -> Status {
        NIBBLE_TRY(const auto all, gather(ranks, "x", {1, 1}));
        if (ranks.rank() == 1) return Ok{};
        for (int i = 0; i < 500 && ranks.alive().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return ranks.alive();
    });
    EXPECT_THAT(said, ElementsAre(HasSubstr("rank 1 of 2 has ended"), ""));
}

INSTANTIATE_TEST_SUITE_P(All, Ranks, testing::Values("sockets", "threads"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace nibble
