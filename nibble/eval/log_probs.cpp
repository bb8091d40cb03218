#include "eval/log_probs.h"

#include "eval/token_scores.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// Computes the logits of a batch and converts them to log-probabilities in place.
Status forward_log_probs(const LanguageModel& model, const Batch& batch, std::span<float> out) {
    NIBBLE_CHECK(model.forward(batch, out));
    const Workspace& work = model.workspace();
    const int64_t vocab = model.config().vocab;
    work.pool->parallel_for(batch.wanted(), [&](int64_t row) {
        float* at = out.data() + row * vocab;
        work.elementwise->log_softmax(at, vocab, at);
    });
    return Ok{};
}

ContinuationScore score_rows(const Continuation& c, const float* rows, int64_t vocab) {
    ContinuationScore result;
    for (size_t i = static_cast<size_t>(c.from); i < c.tokens.size(); ++i, rows += vocab) {
        const std::span<const float> row(rows, static_cast<size_t>(vocab));
        const auto target = static_cast<size_t>(c.tokens[i]);
        result.log_prob += double(row[target]);
        result.greedy = result.greedy && likeliest(row) == target;
    }
    return result;
}

std::span<const int32_t> input_of(const Continuation& c) { return std::span(c.tokens).first(c.tokens.size() - 1); }

// Continuations [first, first + count) whose first `tokens` inputs are equal and need no logits; these inputs run once.
struct Shared {
    size_t first = 0, count = 1;
    int64_t tokens = 0;  // 0: no shared inputs
};

constexpr int64_t worth_sharing = 8;  // tokens

// Returns the number of inputs that `c` shares with the first `known` of `other`, without inputs whose logits are
// needed.
int64_t common(const Continuation& c, const Continuation& other, int64_t known) {
    const int64_t most = std::min({known, c.from - 1, other.from - 1});
    const auto differ = std::mismatch(c.tokens.begin(), c.tokens.begin() + most, other.tokens.begin());
    return differ.first - c.tokens.begin();
}

// Returns groups from item `first` on that fit one pass of `rows` rows and `wanted` rows of logits; at least one item.
std::vector<Shared> next_groups(std::span<const Continuation> items, size_t first, int64_t rows, int64_t wanted) {
    std::vector<Shared> groups;
    int64_t total = 0, total_wanted = 0;
    for (size_t i = first; i < items.size(); ++i) {
        const Continuation& c = items[i];
        const int64_t length = std::ssize(c.tokens) - 1, want = length - (c.from - 1);
        // Rows if the item joins the last group: its members keep only the rows that they do not share.
        Shared joined = groups.empty() ? Shared{} : groups.back();
        if (!groups.empty()) {
            joined.tokens = common(c, items[joined.first], joined.count == 1 ? length : joined.tokens);
            ++joined.count;
        }
        const bool joins = joined.count > 1 && joined.tokens >= worth_sharing;
        int64_t more = length;
        if (joins) {
            const Shared& g = groups.back();
            more = length - joined.tokens + static_cast<int64_t>(g.count) * (g.tokens - joined.tokens) +
                   (joined.tokens - g.tokens);
        }
        if (!groups.empty() && (total + more > rows || total_wanted + want > wanted)) break;
        if (joins)
            groups.back() = joined;
        else
            groups.push_back({i});
        total += more, total_wanted += want;
    }
    return groups;
}

// The sequences of the members of groups with shared tokens, in order; each starts after the shared tokens.
struct Forks {
    std::unique_ptr<KvPool> pool;
    std::vector<Sequence> sequences;
};

Result<Forks> run_prefixes(const LanguageModel& model, std::span<const Continuation> items,
                           std::span<const Shared> groups) {
    int64_t room = 0, sequences = 0;
    const auto pages = [](int64_t tokens) { return (tokens / kv_page_tokens + 1) * kv_page_tokens; };
    for (const Shared& g : groups)
        for (size_t i = g.first; g.tokens && i < g.first + g.count; ++i, ++sequences)
            room += pages(std::ssize(items[i].tokens)) + (i == g.first ? pages(g.tokens) : 0);
    Forks forks;
    if (room == 0) return forks;
    NIBBLE_TRY(forks.pool, model.make_pool(room, sequences));
    std::vector<Sequence> prefixes;
    std::vector<Segment> segments;
    prefixes.reserve(groups.size());
    for (const Shared& g : groups) {
        if (!g.tokens) continue;
        prefixes.push_back(forks.pool->sequence());
        segments.push_back(
            {&prefixes.back(), std::span(items[g.first].tokens).first(static_cast<size_t>(g.tokens)), g.tokens});
    }
    NIBBLE_CHECK(model.forward(Batch(std::move(segments)), {}));
    size_t at = 0;
    for (const Shared& g : groups) {
        if (!g.tokens) continue;
        for (size_t i = 1; i < g.count; ++i) {
            NIBBLE_TRY(Sequence fork, prefixes[at].fork());
            forks.sequences.push_back(std::move(fork));
        }
        forks.sequences.push_back(std::move(prefixes[at++]));
    }
    return forks;
}

}  // namespace

Status log_prob_rows(const LanguageModel& model, std::span<const int32_t> tokens, int64_t from, std::span<float> out) {
    return forward_log_probs(model, Batch({{nullptr, tokens, from}}), out);
}

Result<std::vector<ContinuationScore>> score(const LanguageModel& model, std::span<const Continuation> continuations,
                                             int64_t rows, int64_t wanted) {
    const int64_t vocab = model.config().vocab;
    for (size_t i = 0; i < continuations.size(); ++i) {
        const Continuation& c = continuations[i];
        if (std::ssize(c.tokens) - 1 > model.config().context)
            return fail("item {}: has {} tokens; the model's context is {}", i, c.tokens.size(),
                        model.config().context);
        for (const int32_t id : c.tokens)
            if (id < 0 || id >= vocab) return fail("item {}: token {}; the model's vocabulary has {}", i, id, vocab);
    }
    std::vector<ContinuationScore> scores;
    std::vector<float> logits;
    while (scores.size() < continuations.size()) {
        const std::vector<Shared> groups = next_groups(continuations, scores.size(), rows, wanted);
        NIBBLE_TRY(Forks forks, run_prefixes(model, continuations, groups));
        std::vector<Segment> segments;
        size_t sequence = 0;
        for (const Shared& g : groups)
            for (size_t i = g.first; i < g.first + g.count; ++i) {
                const Continuation& c = continuations[i];
                segments.push_back({g.tokens ? &forks.sequences[sequence++] : nullptr,
                                    input_of(c).subspan(static_cast<size_t>(g.tokens)), c.from - 1 - g.tokens});
            }
        const size_t first = scores.size(), count = segments.size();
        const Batch batch(std::move(segments));
        logits.resize(static_cast<size_t>(batch.wanted() * vocab));
        NIBBLE_CHECK(forward_log_probs(model, batch, logits));
        const float* at = logits.data();
        for (size_t i = first; i < first + count; ++i) {
            scores.push_back(score_rows(continuations[i], at, vocab));
            if (!std::isfinite(scores.back().log_prob)) return fail("item {}: a log-probability is not finite", i);
            at += (std::ssize(continuations[i].tokens) - continuations[i].from) * vocab;
        }
    }
    return scores;
}

}  // namespace nibble
