// Hundreds of random requests at once, and each alone, must give the same tokens and log-probabilities bit for bit:
// with a cache that is too small, shared prefixes, drafts, priorities, constraints (some faulty) and cancellations.
#pragma once

#include "engine/run_requests.h"
#include "engine/toy_constraint.h"

#include <random>

namespace nibble::test {

struct RandomLoad {
    std::vector<Request> requests;
    std::vector<int64_t> submit_at;  // number of the step
    std::vector<int64_t> cancel_at;  // number of the step; -1: never
    std::vector<std::optional<ToyLanguage>> languages;
};

class LoadMaker {
public:
    // plain: nine of ten requests use no feature that delays the next step until their tokens are known; a third of
    // these have a constraint or penalties.
    LoadMaker(int64_t vocab, uint32_t seed, bool plain) : vocab_(vocab), random_(seed), plain_(plain) {
        for (auto& start : starts_) start = text(40 + below(140));
    }

    RandomLoad load(int count) {
        RandomLoad load;
        for (int i = 0; i < count; ++i) {
            load.requests.push_back(request());
            load.submit_at.push_back(below(plain_ ? count / 2 : count * 5 / 4));
            load.cancel_at.push_back(below(10) == 0 ? load.submit_at.back() + below(30) : -1);
            load.languages.push_back(language_);
        }
        return load;
    }

private:
    // Returns 0 if n is 0.
    int64_t below(int64_t n) { return n > 0 ? static_cast<int64_t>(random_() % static_cast<uint64_t>(n)) : 0; }
    float real(float low, float high) { return low + (high - low) * static_cast<float>(below(1000)) / 1000.0f; }
    int32_t id() { return static_cast<int32_t>(below(vocab_)); }
    // Returns random text, or a short piece repeated, which can be drafted.
    std::vector<int32_t> text(int64_t n) {
        std::vector<int32_t> out;
        const int64_t period = below(3) == 0 ? 2 + below(6) : n;
        for (int64_t i = 0; i < n; ++i) out.push_back(i < period ? id() : out[size_t(i - period)]);
        return out;
    }
    Request request() {
        Request r;
        if (below(3) > 0) r.prompt = starts_[size_t(below(std::ssize(starts_)))];
        for (const int32_t t : text(1 + below(60))) r.prompt.push_back(t);
        r.max_tokens = 1 + below(below(3) == 0 ? 140 : 40);
        SamplingParams& s = r.sampling;
        s.seed = random_();
        s.temperature = below(2) == 0 ? 0.0f : real(0.3f, 1.5f);
        if (below(3) == 0) s.top_k = 1 + below(20);
        if (below(3) == 0) s.top_p = real(0.1f, 1.0f);
        if (below(4) == 0) s.min_p = real(0.0f, 0.2f);
        if (below(4) == 0) s.repetition_penalty = real(0.8f, 1.3f);
        if (below(4) == 0) s.frequency_penalty = real(-1, 1);
        if (below(4) == 0) s.presence_penalty = real(-1, 1);
        if (below(2) == 0) r.eos = {id()};
        if (!r.eos.empty() && below(2) == 0) r.min_tokens = std::min<int64_t>(r.max_tokens, below(10));
        if (below(6) == 0) r.bias = {{id(), real(-5, 5)}};
        if (below(6) == 0) r.bad_words = {{id()}};
        if (below(4) == 0) r.top_logprobs = static_cast<int32_t>(below(4));
        if (below(12) == 0) r.prompt_logprobs = static_cast<int32_t>(below(3));
        if (below(8) == 0) r.choices = static_cast<int32_t>(2 + below(3));
        r.priority = static_cast<int32_t>(below(3));
        if (below(2) == 0) r.drafts = below(7);
        if (below(5) == 0) r.cache_salt = "s";
        language_.reset();
        const bool free = plain_ && below(10) > 0, held = free && below(3) == 0;
        if (free) {
            r.top_logprobs = r.prompt_logprobs = -1;
            r.bias.clear(), r.drafts.reset();
        }
        if (free && !held) {
            s.repetition_penalty = 1, s.frequency_penalty = 0, s.presence_penalty = 0;
            r.min_tokens = 0, r.bad_words.clear();
        } else if (below(4) == 0 || (plain_ && below(3) > 0)) {
            language_ = {.vocab = vocab_,
                         .seed = static_cast<uint32_t>(random_()),
                         .share = 2 + below(6),
                         .length = plain_ ? 30 + below(100) : 1 + below(60),
                         .breaks = below(4) == 0 ? below(20) : -1,
                         .refuses = below(6) == 0 ? below(20) : -1};
            r.constraint = std::make_shared<ToyConstraint>(*language_);
            r.bad_words.clear();  // otherwise sometimes no token would be allowed
        }
        return r;
    }

    int64_t vocab_;
    std::mt19937_64 random_;
    bool plain_;
    std::vector<int32_t> starts_[3];
    std::optional<ToyLanguage> language_;  // language of the last request
};

// overlaps: `runs` computes as `model` does, and steps start before the tokens of the previous step are known. stretch:
// if not 0, pieces of prompts depend on the clock, and so do preemptions. repeats: texts of the model repeat, so that
// drafts from earlier text are accepted.
inline void expect_same_under_load(const LanguageModel* model, const LanguageModel* runs, int count, bool overlaps,
                                   double stretch = 0, bool repeats = true) {
    const RandomLoad load = LoadMaker(model->config().vocab, overlaps ? 11 : 7, overlaps).load(count);
    // Memory for about 500 tokens, and for the states of the running sequences. Twice that is requested, because states
    // use at most half of the memory.
    const auto layouts = model->states();
    const bool recurrent = pool_bytes(layouts, 0, 1) > 0;
    EngineOptions options{.sequences = recurrent ? 5 : 9, .step_rows = 96, .mixed_rows = 40};
    options.stretch = stretch;
    if (!overlaps) options.drafts = 3;
    if (!overlaps && runs->predicts()) options.drafter = DraftSource::prediction;
    options.kv_memory = recurrent ? std::max(pool_bytes(layouts, 448, 12), pool_bytes(layouts, 0, 25))
                                  : pool_bytes(layouts, overlaps ? 448 : 512, 0);
    const auto engine = make_engine(*runs, options);
    ASSERT_GE(engine->capacity(), 384);
    std::vector<Heard> heard;
    for (const Request& r : load.requests) heard.emplace_back(r.choices);
    std::vector<uint64_t> handles(size_t(count), 0);
    bool more = true;
    for (int64_t step = 0; more || step < 3 * count; ++step) {
        for (size_t i = 0; i < handles.size(); ++i) {
            if (load.submit_at[i] == step) {
                const Admission a =
                    engine->submit(load.requests[i], [&heard, i](const AnswerEvent& e) { heard[i].hear(e); });
                ASSERT_TRUE(a.accepted()) << a.message;
                handles[i] = a.handle;
            }
            if (load.cancel_at[i] == step) engine->cancel(handles[i]);
        }
        more = engine->step();
    }
    int64_t whole = 0, generated = 0, constrained = 0, errors = 0;
    for (size_t i = 0; i < heard.size(); ++i) {
        const Heard alone = run_alone(*model, load.requests[i]);
        EXPECT_EQ(heard[i].reports, 1);
        for (size_t c = 0; c < alone.choices.size(); ++c) {
            const Answered& answer = heard[i].choices[c];
            generated += std::ssize(answer.ids);
            errors += answer.finish == FinishReason::error;
            if (const auto& language = load.languages[i]) {
                // End tokens are not part of the language. The token that it rejects is the last one.
                std::span<const int32_t> said = answer.ids;
                if (!said.empty() && std::ranges::count(load.requests[i].eos, said.back()) > 0)
                    said = said.first(said.size() - 1);
                if (answer.finish == FinishReason::error) {
                    EXPECT_TRUE(language->breaks >= 0 || language->refuses >= 0) << heard[i].error;
                    if (heard[i].error.starts_with("the constraint rejected")) said = said.first(said.size() - 1);
                }
                EXPECT_TRUE(ToyConstraint::holds(*language, said)) << "request " << i;
                constrained += answer.finish != FinishReason::error;
            } else {
                EXPECT_NE(answer.finish, FinishReason::error) << heard[i].error;
            }
            if (heard[i].choices[c].finish == FinishReason::cancelled) {
                EXPECT_TRUE(heard[i].choices[c].begins(alone.choices[c])) << "request " << i << " choice " << c;
                continue;
            }
            ++whole;
            EXPECT_EQ(heard[i].choices[c], alone.choices[c]) << "request " << i << " choice " << c << heard[i].error;
            EXPECT_EQ(heard[i].prompt, alone.prompt) << "request " << i;
        }
    }
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.failed_drafts, 0);
    EXPECT_GT(whole, count * 3 / 4);
    EXPECT_TRUE(recurrent || stretch > 0 || stats.preemptions > 0);  // states leave more memory than the load needs
    EXPECT_GT(stats.prefix_hits, 0);
    EXPECT_TRUE(overlaps || !repeats || stats.accepted_tokens > 0);
    EXPECT_TRUE(overlaps || stats.accepted_tokens < stats.draft_tokens);
    EXPECT_GT(stats.finished_cancelled, 0);
    EXPECT_EQ(stats.finished_error, errors);
    EXPECT_TRUE(overlaps || errors > 0);
    EXPECT_GT(constrained, overlaps ? 0 : count / 12);
    EXPECT_EQ(stats.generated_tokens, generated);
    EXPECT_EQ(stats.used_pages, 0);
    EXPECT_TRUE(!overlaps || stats.overlapped_steps > stats.steps / 20) << stats.overlapped_steps;
    EXPECT_TRUE(!overlaps || stats.deferred_rows > 100) << stats.deferred_rows;
}

}  // namespace nibble::test
