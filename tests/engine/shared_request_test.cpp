// Token lists as masks allow the same tokens as searching the lists.
#include "engine/logit_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble {
namespace {

bool may_follow(const Request& r, int32_t token, std::span<const int32_t> answer) {
    const auto in = [&](const std::vector<int32_t>& ids) { return std::ranges::find(ids, token) != ids.end(); };
    const bool early = std::ssize(answer) < r.min_tokens;
    bool allowed = r.allowed.empty() || in(r.allowed);
    if ((!r.allowed.empty() || early) && in(r.eos)) allowed = !early;
    for (const auto& word : r.bad_words) {
        const auto before = std::span(word).first(word.size() - 1);
        if (word.back() == token && answer.size() >= before.size() &&
            std::ranges::equal(answer.last(before.size()), before))
            allowed = false;
    }
    return allowed;
}

TEST(SharedRequest, MasksFollowTheTokenLists) {
    std::mt19937 random(3);
    const auto below = [&](int n) { return static_cast<int32_t>(random() % static_cast<unsigned>(n)); };
    for (int round = 0; round < 500; ++round) {
        const int vocab = 5 + below(100);
        const auto ids = [&](int most) {
            std::vector<int32_t> list(static_cast<size_t>(below(most)));
            for (int32_t& id : list) id = below(vocab);
            return list;
        };
        Request r;
        r.eos = ids(4);
        if (below(2)) r.allowed = ids(60);
        r.min_tokens = below(4);
        for (int i = below(30); i > 0; --i)
            if (auto word = ids(4); !word.empty()) r.bad_words.push_back(std::move(word));
        const SharedRequest shared(r, vocab);
        LogitRules rules(shared);
        std::vector<int32_t> answer;
        for (int length = 0; length < 6; ++length) {
            const auto mask = rules.mask(vocab, answer, nullptr);
            for (int32_t token = 0; token < vocab; ++token) {
                const bool open = mask.empty() || (mask[size_t(token) / 32] >> token % 32 & 1);
                ASSERT_EQ(open, may_follow(r, token, answer)) << round << " token " << token << " behind " << length;
            }
            answer.push_back(below(vocab));
        }
    }
}

}  // namespace
}  // namespace nibble
