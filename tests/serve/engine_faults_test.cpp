// What goes wrong ends the request that it belongs to.
#include "serve/run_requests.h"
#include "serve/sampler.h"
#include "serve/small_models.h"

#include <atomic>
#include <limits>

namespace nibble::test {
namespace {

// A model that fails where it is told: token `poison` makes a whole step an error, token `rotten` its own row a NaN,
// token `greedy` asks for more memory than there is.
class Faulty : public LanguageModel {
public:
    static constexpr int32_t poison = 40, rotten = 41, greedy = 42;
    Faulty(const LanguageModel& inner, bool chooses) : inner_(inner), chooses_(chooses) {}
    const ModelConfig& config() const override { return inner_.config(); }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override {
        return inner_.make_pool(tokens, sequences);
    }
    std::vector<StateLayout> states() const override { return inner_.states(); }
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override { return inner_.free_bytes(rows, wanted); }
    Status forward(const Batch& batch, std::span<float> logits, Observer*) const override {
        NIBBLE_CHECK(inner_.evaluate(batch, logits));
        size_t row = 0;
        bool fails = false;
        for (const Segment& s : batch.segments())
            for (int64_t i = 0; i < std::ssize(s.tokens); ++i) {
                const int32_t token = s.tokens[size_t(i)];
                fails = fails || token == poison;
                if (token == greedy) throw std::bad_alloc();
                if (i < s.logits_from) continue;
                if (token == rotten) logits[row * size_t(config().vocab) + 5] = std::numeric_limits<float>::quiet_NaN();
                ++row;
            }
        if (fails) return fail("a poisoned step");
        return Ok{};
    }
    bool chooses() const override { return chooses_; }
    Status choose(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<ChosenToken> chosen) const override {
        const auto vocab = size_t(config().vocab);
        logits_.assign(requests.size() * vocab, 0.0f);
        NIBBLE_CHECK(forward(batch, logits_, nullptr));
        std::vector<float> row(vocab), log_probs(vocab);
        for (size_t i = 0; i < requests.size(); ++i) {
            row.assign(&logits_[i * vocab], &logits_[i * vocab] + vocab);
            if (workspace().elementwise->first_nonfinite(row.data(), int64_t(vocab)) >= 0) {
                chosen[i].id = -2;
                continue;
            }
            workspace().elementwise->log_softmax(row.data(), int64_t(vocab), log_probs.data());
            if (left_++ % 3 == 0) continue;  // every third row is left to the host
            const TokenRequest& r = requests[i];
            std::vector<int32_t> prompt;
            for (const SeenToken& s : r.seen) prompt.push_back(s.id);
            Sampler sampler(r.params, r.sequence, prompt);
            for (const SeenToken& s : r.seen)
                for (int32_t k = 0; k < s.answer; ++k) sampler.accept(s.id);
            const int32_t id = sampler.sample(row, r.position);
            chosen[i] = {id, log_probs[size_t(id)]};
        }
        return Ok{};
    }
    Status logits_of(int64_t row, std::span<float> logits) const override {
        std::copy_n(logits_.begin() + row * config().vocab, logits.size(), logits.begin());
        return Ok{};
    }
    Workspace& workspace() const override { return inner_.workspace(); }
    std::string kernels() const override { return inner_.kernels(); }

private:
    const LanguageModel& inner_;
    bool chooses_;
    mutable std::vector<float> logits_;
    mutable int left_ = 0;
};

Request plain_request(int i, std::vector<int32_t> prompt) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.seed = uint64_t(i);
    r.max_tokens = 12;
    r.bias = {{Faulty::poison, -1e6f}, {Faulty::rotten, -1e6f}, {Faulty::greedy, -1e6f}};
    return r;
}

TEST(EngineFaults, AFaultEndsItsRequestAndNoOther) {
    ThreadPool pool(2);
    for (const char* name : {"llama", "hybrid"})
        for (const bool chooses : {false, true}) {
            const auto model = load_small({name}, pool);
            const Faulty faulty(*model, chooses);
            std::vector<Request> requests;
            for (int i = 0; i < 12; ++i) {
                std::vector<int32_t> prompt;
                for (int k = 0; k < 5 + 9 * i; ++k) prompt.push_back((k * 5 + i) % 39);
                if (i == 3) prompt.push_back(Faulty::rotten);
                if (i == 5) prompt[3] = Faulty::poison;
                if (i == 7) prompt[4] = Faulty::greedy;
                requests.push_back(plain_request(i, prompt));
            }
            const auto engine = make_engine(faulty, {.sequences = 6, .step_rows = 64, .drafts = 2});
            const auto heard = run_all(*engine, requests);
            const auto message = [&](size_t i) {
                EXPECT_EQ(heard[i].choices[0].finish, FinishReason::error);
                return heard[i].error;
            };
            EXPECT_NE(message(3).find("NaN"), std::string::npos);
            EXPECT_EQ(message(5), "a poisoned step");
            EXPECT_EQ(message(7), "out of memory");
            for (const size_t i : {0u, 1u, 2u, 4u, 6u, 8u, 9u, 10u, 11u})
                EXPECT_EQ(heard[i].choices, run_alone(*model, requests[i]).choices) << name << " " << i;
            EXPECT_EQ(engine->stats().used_pages, 0);
            EXPECT_EQ(engine->stats().finished_error, 3);
        }
}

// The same answers where tokens are chosen on a device, edits and penalties included.
TEST(EngineFaults, AModelThatChoosesTokensGivesTheSameAnswers) {
    ThreadPool pool(2);
    const auto model = load_small({"llama"}, pool);
    const Faulty chooser(*model, true);
    std::vector<Request> requests;
    for (int i = 0; i < 24; ++i) {
        std::vector<int32_t> prompt;
        for (int k = 0; k < 8 + 5 * i; ++k) prompt.push_back((k % (3 + i % 4) * 7 + i % 2) % 39);
        Request& r = requests.emplace_back(plain_request(i, prompt));
        r.max_tokens = 30;
        r.eos = {17};
        r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
        if (i % 2 == 0) r.bias = {};
        if (i % 4 == 0) r.min_tokens = 9;
        if (i % 4 == 1) r.sampling.repetition_penalty = 1.2f;
        if (i % 5 == 2) r.sampling.frequency_penalty = 0.4f;
        if (i % 6 == 3) r.top_logprobs = 2;
        if (i % 8 == 2) r.prompt_logprobs = 1;
        if (i % 2 == 0) r.allowed = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 21, 28};
    }
    const auto engine = make_engine(chooser, {.sequences = 10, .step_rows = 100, .drafts = 4});
    const auto heard = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        const Heard alone = run_alone(*model, requests[i]);
        EXPECT_EQ(heard[i].choices, alone.choices) << i;
        EXPECT_EQ(heard[i].prompt, alone.prompt) << i;
    }
    EXPECT_GT(engine->stats().accepted_tokens, 0);
}

}  // namespace
}  // namespace nibble::test
