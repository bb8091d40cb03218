#include "eval/log_probs.h"

#include "eval/token_scores.h"

#include <cmath>

namespace nibble {
namespace {

// Logits of a batch, made log-probabilities in place.
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
        std::vector<Segment> segments;
        int64_t total = 0, total_wanted = 0;
        for (size_t i = scores.size(); i < continuations.size(); ++i) {
            const Continuation& c = continuations[i];
            const auto input = std::span(c.tokens).first(c.tokens.size() - 1);
            const int64_t want = std::ssize(input) - (c.from - 1);
            if (!segments.empty() && (total + std::ssize(input) > rows || total_wanted + want > wanted)) break;
            segments.push_back({nullptr, input, c.from - 1});
            total += std::ssize(input);
            total_wanted += want;
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
