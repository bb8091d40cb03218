// A paused engine: unfinished answers end first, are cancelled, or wait; later requests wait; weights change in
// between.
#include "checkpoint/new_weights.h"
#include "engine/engine.h"
#include "engine/run_requests.h"

#include <future>
#include <thread>

namespace nibble::test {
namespace {

Request long_request(const ChatModel& m, const std::string& text, int64_t tokens = 60) {
    Request r;
    r.prompt = m.encode(text);
    r.sampling.temperature = 1;
    r.sampling.seed = 3;
    r.max_tokens = tokens;
    return r;
}

// Submits and collects; heard[i] belongs to requests[i].
void submit_all(Engine& engine, const std::vector<Request>& requests, std::vector<Heard>& heard) {
    for (size_t i = 0; i < requests.size(); ++i) {
        const Admission a = engine.submit(requests[i], [&heard, i](const AnswerEvent& e) { heard[i].hear(e); });
        EXPECT_TRUE(a.accepted()) << a.message;
    }
}

TEST(EnginePause, KeptAnswersHaveTheirTokens) {
    const ChatModel m;
    const std::vector<Request> requests{long_request(m, "hello world"), long_request(m, "The quick brown fox")};
    const auto whole = run_all(*make_engine(*m.model, {}, m.tokenizer), requests);
    for (const int steps : {0, 1, 3, 20}) {
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        std::vector<Heard> heard(2);
        submit_all(*engine, requests, heard);
        for (int i = 0; i < steps; ++i) engine->step();
        engine->pause(Unfinished::keep);
        EXPECT_TRUE(engine->paused());
        EXPECT_EQ(engine->stats().used_pages, 0);
        EXPECT_FALSE(engine->step());
        engine->forget_prefixes();
        EXPECT_EQ(engine->stats().cached_pages, 0);
        engine->resume();
        while (engine->step()) {
        }
        for (size_t i = 0; i < 2; ++i) EXPECT_EQ(heard[i].choices, whole[i].choices) << steps;
    }
}

TEST(EnginePause, OthersEndFirstOrAreCancelled) {
    const ChatModel m;
    const std::vector<Request> requests{long_request(m, "hello world"), long_request(m, "The quick brown fox")};
    const auto whole = run_all(*make_engine(*m.model, {}, m.tokenizer), requests);
    for (const Unfinished unfinished : {Unfinished::finish, Unfinished::cancel}) {
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        engine->start();
        std::vector<Heard> heard(2), late(1);
        std::atomic<int64_t> steps = 0;
        submit_all(*engine, requests, heard);
        engine->pause(unfinished);
        for (size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(heard[i].reports, 1);
            if (unfinished == Unfinished::finish)
                EXPECT_EQ(heard[i].choices, whole[i].choices);
            else
                EXPECT_TRUE(heard[i].choices[0].begins(whole[i].choices[0]));
        }
        submit_all(*engine, {requests[0]}, late);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_EQ(late[0].reports, 0);
        engine->forget_pages();
        engine->resume();
        engine->drain(EngineClock::now() + std::chrono::seconds(60));
        EXPECT_EQ(late[0].choices, whole[0].choices);
    }
}

TEST(EnginePause, CancelledRequestsOfAPauseEndAfterIt) {
    const ChatModel m;
    const auto engine = make_engine(*m.model, {}, m.tokenizer);
    engine->start();
    engine->pause(Unfinished::cancel);
    Heard heard(1);
    const Admission a = engine->submit(long_request(m, "hello"), [&](const AnswerEvent& e) { heard.hear(e); });
    engine->cancel(a.handle);
    engine->resume();
    engine->drain(EngineClock::now() + std::chrono::seconds(60));
    EXPECT_EQ(heard.choices[0].finish, FinishReason::cancelled);
    EXPECT_TRUE(heard.choices[0].ids.empty());
}

TEST(EnginePause, AnEngineThatEndsInAPauseReportsItsRequests) {
    const ChatModel m;
    Heard first(1), second(1);
    {
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        engine->start();
        EXPECT_TRUE(engine->submit(long_request(m, "hello"), [&](const AnswerEvent& e) { first.hear(e); }).accepted());
        engine->pause(Unfinished::keep);
        EXPECT_TRUE(engine->submit(long_request(m, "x"), [&](const AnswerEvent& e) { second.hear(e); }).accepted());
    }
    EXPECT_EQ(first.reports, 1);
    EXPECT_EQ(second.reports, 1);
    EXPECT_EQ(second.choices[0].finish, FinishReason::cancelled);
    // drain() ends a pause.
    const auto engine = make_engine(*m.model, {}, m.tokenizer);
    engine->start();
    engine->pause(Unfinished::keep);
    engine->forget_prefixes();
    EXPECT_EQ(std::async([&] {
                  engine->drain(EngineClock::now() + std::chrono::seconds(5));
              }).wait_for(std::chrono::seconds(60)),
              std::future_status::ready);
}

TEST(EnginePause, AnswersContinueWithOtherWeights) {
    ChatModel m;
    const Request request = long_request(m, "hello world", 40);
    const auto engine = make_engine(*m.model, {}, m.tokenizer);
    std::vector<Heard> heard(1);
    submit_all(*engine, {request}, heard);
    for (int i = 0; i < 10; ++i) engine->step();
    const std::vector<int32_t> begun = heard[0].choices[0].ids;
    ASSERT_GT(begun.size(), 4u);
    engine->pause(Unfinished::keep);
    auto changed = std::make_shared<NewWeights>(m.checkpoint);
    std::vector<float> values(static_cast<size_t>(m.model->config().hidden), 0.5f);
    ASSERT_TRUE(changed->set("model.norm.weight", std::vector{m.model->config().hidden}, values).ok());
    ASSERT_TRUE(m.model->replace(changed).ok());
    engine->forget_prefixes();
    engine->resume();
    while (engine->step()) {
    }
    // Every later token has the log-probability of the new weights on the whole text.
    const std::vector<int32_t>& ids = heard[0].choices[0].ids;
    ASSERT_GT(ids.size(), begun.size());
    EXPECT_TRUE(std::equal(begun.begin(), begun.end(), ids.begin()));
    std::vector<int32_t> text = request.prompt;
    text.insert(text.end(), ids.begin(), ids.end());
    const std::vector<double> all = m.log_probs(text);
    for (size_t i = begun.size(); i < ids.size(); ++i) {
        const size_t row = request.prompt.size() + i - 1;
        EXPECT_NEAR(std::bit_cast<float>(heard[0].choices[0].log_prob_bits[i]),
                    all[row * static_cast<size_t>(m.model->config().vocab) + static_cast<size_t>(ids[i])], 1e-4);
    }
}

}  // namespace
}  // namespace nibble::test
