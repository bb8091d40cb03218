#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace nibble {
namespace {

std::vector<int32_t> counting(int64_t n, int32_t from = 0) {
    std::vector<int32_t> out(static_cast<size_t>(n));
    std::iota(out.begin(), out.end(), from);
    return out;
}

struct Fixture {
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<PrefixCache> cache;
    explicit Fixture(std::vector<StateLayout> layouts, int64_t states = 0) {
        auto made = KvPool::create(std::move(layouts), 64 * 8, 8, host_state_memory);
        EXPECT_TRUE(made.ok());
        pool = *std::move(made);
        cache = std::make_unique<PrefixCache>(*pool, states);
    }
    struct Text {
        Sequence sequence;
        PrefixCache::Found found;
    };
    Text begin(const std::vector<int32_t>& prompt, const std::string& salt = {}) {
        Sequence sequence = pool->sequence();
        auto found = cache->begin(prompt, salt, sequence);
        EXPECT_TRUE(found.ok());
        return {std::move(sequence), *std::move(found)};
    }
    void compute(Text& text, const std::vector<int32_t>& tokens) {
        const int64_t n = std::ssize(tokens) - text.sequence.position();
        ASSERT_TRUE(text.sequence.reserve(n).ok());
        text.sequence.advance(n);
        cache->extend(text.found.path, tokens, text.sequence);
    }
};

TEST(PrefixCache, TilesAreFoundByTokensParentAndSalt) {
    Fixture f({{.page_bytes = 64}, {.page_bytes = 64}});
    const auto prompt = counting(200);
    {
        auto first = f.begin(prompt);
        EXPECT_EQ(first.found.tokens, 0);
        f.compute(first, prompt);
        auto neighbour = f.begin(prompt);
        EXPECT_EQ(neighbour.found.tokens, 192);
        EXPECT_EQ(neighbour.sequence.position(), 192);
        EXPECT_EQ(neighbour.sequence.pages(0)[1], first.sequence.pages(0)[1]);
    }
    EXPECT_EQ(f.cache->idle_pages(), 6);
    EXPECT_EQ(f.pool->free_pages(), 16 - 6);
    EXPECT_EQ(f.begin(counting(192)).found.tokens, 128);  // at least one token is computed
    EXPECT_EQ(f.begin(prompt, "other").found.tokens, 0);
    auto changed = prompt;
    changed[70] = 1000;
    EXPECT_EQ(f.begin(changed).found.tokens, 64);
    EXPECT_EQ(f.begin(counting(200, 64)).found.tokens, 0);  // the second tile's tokens, but at the start of the prompt
    EXPECT_EQ(f.cache->idle_pages(), 6);
}

TEST(PrefixCache, RequestsWaitForATileOfARunningRequestButNotOfACancelledOne) {
    Fixture f(std::vector<StateLayout>{{.page_bytes = 64}});
    const auto prompt = counting(130);
    {
        auto first = f.begin(prompt);
        EXPECT_TRUE(f.begin(prompt).found.wait);
        EXPECT_FALSE(f.begin(prompt, "salt").found.wait);
        EXPECT_FALSE(f.begin(counting(64)).found.wait);  // the tile's last token is computed in any case
    }
    auto second = f.begin(prompt);
    EXPECT_FALSE(second.found.wait);
    f.compute(second, prompt);
    EXPECT_EQ(f.begin(prompt).found.tokens, 128);
}

TEST(PrefixCache, IdleTilesGoLeastRecentlyUsedFirstAndLeavesBeforeTheirParents) {
    Fixture f(std::vector<StateLayout>{{.page_bytes = 64}});
    const auto one = counting(130), two = counting(130, 500);
    for (const auto& prompt : {one, two}) {
        auto text = f.begin(prompt);
        f.compute(text, prompt);
    }
    EXPECT_EQ(f.cache->idle_pages(), 4);
    f.begin(one);  // used again
    EXPECT_TRUE(f.cache->evict());
    EXPECT_EQ(f.begin(two).found.tokens, 64);
    EXPECT_EQ(f.begin(one).found.tokens, 128);
    EXPECT_TRUE(f.cache->evict());
    EXPECT_EQ(f.begin(two).found.tokens, 0);
    auto held = f.begin(one);
    EXPECT_FALSE(f.cache->evict());
    EXPECT_EQ(f.cache->idle_pages(), 0);
    EXPECT_EQ(f.cache->evictions(), 2);
}

// A prompt that ends with a tile computes this tile again, because at least one token must be computed.
TEST(PrefixCache, ATileThatIsComputedAgainReplacesItsIdleCopy) {
    Fixture f(std::vector<StateLayout>{{.page_bytes = 64}});
    const auto prompt = counting(64);
    {
        auto first = f.begin(prompt);
        f.compute(first, prompt);
    }
    EXPECT_EQ(f.pool->free_pages(), 7);
    auto again = f.begin(prompt);
    EXPECT_EQ(again.found.tokens, 0);
    f.compute(again, prompt);
    EXPECT_EQ(f.pool->free_pages(), 7);
    EXPECT_EQ(f.cache->idle_pages(), 0);
    // While another answer uses the copy, both are kept.
    auto third = f.begin(prompt);
    f.compute(third, prompt);
    EXPECT_EQ(f.pool->free_pages(), 6);
    again = {f.pool->sequence(), {}};
    third = {f.pool->sequence(), {}};
    EXPECT_EQ(f.cache->idle_pages(), 1);
    EXPECT_EQ(f.begin(counting(65)).found.tokens, 64);
}

TEST(PrefixCache, StatesContinueFromAStoredCopy) {
    Fixture f({{.page_bytes = 64}, {.floats = 4}}, 1);
    const auto prompt = counting(200);
    auto first = f.begin(prompt);
    ASSERT_TRUE(first.sequence.reserve(128).ok());
    first.sequence.advance(128);
    first.sequence.state(1)[2] = 7;
    f.cache->extend(first.found.path, prompt, first.sequence);
    ASSERT_TRUE(f.cache->keep_states(first.found.path, first.sequence).ok());
    first.sequence.state(1)[2] = 8;
    ASSERT_TRUE(first.sequence.reserve(72).ok());
    first.sequence.advance(72);
    f.cache->extend(first.found.path, prompt, first.sequence);
    auto second = f.begin(prompt);
    EXPECT_EQ(second.found.tokens, 128);
    EXPECT_EQ(second.found.state_tile, 3);
    EXPECT_EQ(second.sequence.state(1)[2], 7.0f);
    // The only copy moves to the position that was requested last.
    ASSERT_TRUE(second.sequence.reserve(64).ok());
    second.sequence.advance(64);
    f.cache->extend(second.found.path, prompt, second.sequence);
    ASSERT_TRUE(f.cache->keep_states(second.found.path, second.sequence).ok());
    EXPECT_EQ(f.begin(prompt).found.tokens, 192);
    EXPECT_EQ(f.begin(counting(190)).found.tokens, 0);
}

TEST(PrefixCache, MissingPagesOutsideTheWindowDoNotPreventAHit) {
    Fixture f({{.page_bytes = 64}, {.page_bytes = 64, .window = 20}});
    const auto prompt = counting(260);
    {
        auto first = f.begin(prompt);
        f.compute(first, prompt);  // all at once, so the window's first pages are freed
        EXPECT_EQ(first.sequence.pages(1)[0], nullptr);
    }
    auto second = f.begin(prompt);
    EXPECT_EQ(second.found.tokens, 256);
    EXPECT_NE(second.sequence.pages(1)[3], nullptr);
    // From the second tile on, a missing page would be needed.
    EXPECT_EQ(f.begin(counting(130)).found.tokens, 0);
}

}  // namespace
}  // namespace nibble
