// An error ends only the request that caused it.
#include "engine/faulty_model.h"
#include "engine/run_requests.h"
#include "engine/small_models.h"

namespace nibble::test {
namespace {

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

// A step fails at its start or its end while another is in flight.
TEST(EngineFaults, AFaultInOverlappingStepsEndsItsRequestAndNoOther) {
    ThreadPool pool(2);
    for (const char* name : {"llama", "hybrid"}) {
        const auto model = load_small({name}, pool);
        const Faulty alone(*model, true, 3, 5);  // faults only in prompts
        const Overlapping overlapping(*model, 17, 5);
        std::vector<Request> requests;
        for (int i = 0; i < 40; ++i) {
            std::vector<int32_t> prompt;
            for (int k = 0; k < 5 + 3 * i; ++k) prompt.push_back((k * 5 + i) % 39);
            if (i % 13 == 3) prompt = {1, 2, i, Faulty::rotten};
            if (i % 13 == 5) prompt[3] = Faulty::poison;
            if (i % 13 == 7) prompt[4] = Faulty::greedy;
            if (i % 13 == 9) prompt[2] = Overlapping::late;
            Request& r = requests.emplace_back(plain_request(i, prompt));
            r.bias.clear();
            r.max_tokens = 20;
        }
        const auto engine = make_engine(overlapping, {.sequences = 6, .step_rows = 64});
        const auto heard = run_all(*engine, requests);
        int64_t errors = 0, whole = 0;
        for (size_t i = 0; i < requests.size(); ++i) {
            const Heard want = run_alone(alone, requests[i]);
            const auto& said = heard[i].choices[0];
            errors += said.finish == FinishReason::error;
            whole += said.finish != FinishReason::error;
            if (i % 13 == 9) {
                EXPECT_EQ(heard[i].error, "a step that failed late") << i;
                EXPECT_TRUE(said.begins(want.choices[0])) << i;
                continue;
            }
            EXPECT_EQ(heard[i].choices, want.choices) << name << " " << i;
            EXPECT_EQ(heard[i].error, want.error) << name << " " << i;
        }
        EXPECT_EQ(errors, 12);
        EXPECT_EQ(whole, 28);
        EXPECT_GT(overlapping.carried(), 50);
        EXPECT_EQ(engine->stats().finished_error, errors);
        EXPECT_EQ(engine->stats().used_pages, 0);
    }
}

// A model that chooses tokens on its device gives the same answers, including penalties and other changes of logits.
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
