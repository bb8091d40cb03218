// Bookkeeping of pages and states with a fake memory that records all calls.
#include "model/sequence.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nibble::test {
namespace {

struct Calls {
    int64_t bytes = 0, zeroed = 0, copied = 0;
};

// Memory that counts calls.
class CountingMemory : public StateMemory {
public:
    CountingMemory(int64_t bytes, Calls& calls) : memory_(size_t(bytes + alignment)), calls_(calls) {}
    std::byte* base() const override {
        const auto at = reinterpret_cast<uintptr_t>(memory_.data());
        return const_cast<std::byte*>(memory_.data()) + (alignment - at % alignment) % alignment;
    }
    Status zero(std::byte* at, int64_t bytes) override {
        std::memset(at, 0, size_t(bytes));
        calls_.zeroed += bytes;
        return Ok{};
    }
    Status copy(std::byte* to, const std::byte* from, int64_t bytes) override {
        std::memcpy(to, from, size_t(bytes));
        calls_.copied += bytes;
        return Ok{};
    }

private:
    std::vector<std::byte> memory_;
    Calls& calls_;
};

std::unique_ptr<KvPool> counting_pool(std::vector<StateLayout> layouts, int64_t tokens, int64_t sequences,
                                      Calls& calls) {
    auto pool = KvPool::create(std::move(layouts), tokens, sequences,
                               [&](int64_t bytes) -> Result<std::unique_ptr<StateMemory>> {
                                   calls.bytes = bytes;
                                   return std::unique_ptr<StateMemory>(std::make_unique<CountingMemory>(bytes, calls));
                               });
    EXPECT_TRUE(pool.ok());
    return *std::move(pool);
}

// Two blocks with pages of 100 and 200 bytes, and one with 10 state values.
const std::vector<StateLayout> layouts{{.page_bytes = 100}, {.floats = 10}, {.page_bytes = 200}};

TEST(KvPool, PagesHaveTheSizeOfTheLargestBlockAndStatesFollow) {
    Calls calls;
    const auto pool = counting_pool(layouts, 65, 3, calls);
    EXPECT_EQ(pool->page_bytes(), 256);
    EXPECT_EQ(pool->pages(), 2 * 2);
    EXPECT_EQ(calls.bytes, 4 * 256 + 3 * 64);
    Sequence s = pool->sequence();
    ASSERT_TRUE(s.reserve(65).ok());
    std::vector<int64_t> numbers;
    for (const int index : {0, 2})
        for (const std::byte* page : s.pages(index)) numbers.push_back(pool->number(page));
    EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_TRUE(s.pages(1).empty());
    EXPECT_EQ(reinterpret_cast<std::byte*>(s.state(1)) - pool->base(), 4 * 256);
}

TEST(KvPool, StatesBeginAsZerosAlsoAfterReuse) {
    Calls calls;
    const auto pool = counting_pool(layouts, 64, 1, calls);
    for (int round = 0; round < 2; ++round) {
        Sequence s = pool->sequence();
        ASSERT_TRUE(s.reserve(1).ok());
        for (int i = 0; i < 10; ++i) EXPECT_EQ(s.state(1)[i], 0.0f);
        s.state(1)[3] = 7.0f;
        s.advance(1);
        ASSERT_TRUE(s.reserve(1).ok());
        EXPECT_EQ(s.state(1)[3], 7.0f);
        EXPECT_EQ(calls.zeroed, (round + 1) * 64);
    }
}

TEST(KvPool, TooManySequencesWithStatesAreAnError) {
    Calls calls;
    const auto pool = counting_pool(layouts, 64 * 4, 1, calls);
    Sequence a = pool->sequence(), b = pool->sequence();
    ASSERT_TRUE(a.reserve(10).ok());
    a.advance(10);
    const Status refused = b.reserve(1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message(), "the pool has no recurrent state left for another sequence");
    EXPECT_FALSE(a.fork().ok());
    a = pool->sequence();
    EXPECT_TRUE(b.reserve(1).ok());
}

TEST(KvPool, AForkCopiesStatesAndTheLastPageOfEachBlock) {
    Calls calls;
    const auto pool = counting_pool(layouts, 64 * 4, 2, calls);
    Sequence a = pool->sequence();
    ASSERT_TRUE(a.reserve(70).ok());
    a.state(1)[0] = 1.5f;
    a.advance(70);
    auto fork = a.fork();
    ASSERT_TRUE(fork.ok());
    EXPECT_EQ(calls.copied, 64 + 2 * 256);
    EXPECT_EQ(fork->pages(0)[0], a.pages(0)[0]);
    EXPECT_NE(fork->pages(0)[1], a.pages(0)[1]);
    Sequence moved = *std::move(fork);
    EXPECT_EQ(moved.state(1)[0], 1.5f);
    EXPECT_NE(moved.state(1), a.state(1));
}

TEST(KvPool, AFailedAllocationIsAnError) {
    const auto pool = KvPool::create(layouts, 64, 1, [](int64_t bytes) -> Result<std::unique_ptr<StateMemory>> {
        return fail("no {} bytes", bytes);
    });
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.error().message(), "the KV cache: no 576 bytes");
}

}  // namespace
}  // namespace nibble::test
