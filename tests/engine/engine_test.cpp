#include "engine/engine.h"

#include "engine/run_requests.h"

#include <set>
#include <thread>

namespace nibble::test {
namespace {

const std::vector<std::string> texts{"hello world", "The quick brown fox", "a", "Numbers: 1 2 3 4 5 6 7 8 9 10", "x y"};

Request request_of(const ChatModel& m, size_t i, float temperature, int64_t max_tokens = 24) {
    Request r;
    r.prompt = m.encode(texts[i]);
    r.sampling.temperature = temperature;
    r.sampling.seed = 11;
    r.sequence = i;
    r.max_tokens = max_tokens;
    r.eos = {271};
    return r;
}

std::vector<Request> all_requests(const ChatModel& m, float temperature) {
    std::vector<Request> out;
    for (size_t i = 0; i < texts.size(); ++i) out.push_back(request_of(m, i, temperature));
    return out;
}

std::vector<Answered> answers(const ChatModel& m, const std::vector<Request>& requests, const EngineOptions& options) {
    const auto engine = make_engine(*m.model, options, m.tokenizer);
    std::vector<Answered> out;
    for (const Heard& h : run_all(*engine, requests))
        for (const Answered& a : h.choices) out.push_back(a);
    return out;
}

TEST(Engine, BitsOfAnAnswerDoNotDependOnBatchChunkOrThreads) {
    const ChatModel m;
    for (const float temperature : {0.0f, 1.0f}) {
        const auto requests = all_requests(m, temperature);
        const auto want = answers(m, requests, {.sequences = 1});
        EXPECT_GT(want[3].ids.size(), 3u);
        EXPECT_EQ(answers(m, requests, {.sequences = 5}), want);
        EXPECT_EQ(answers(m, requests, {.sequences = 3, .step_rows = 4}), want);
        EXPECT_EQ(answers(m, requests, {.sequences = 2, .step_rows = 1}), want);
        EXPECT_EQ(answers(m, requests, {.sequences = 5, .drafts = 5}), want);
        EXPECT_EQ(answers(m, {requests[3], requests[1]}, {.sequences = 2}), (std::vector{want[3], want[1]}));
        const ChatModel one_thread(1);
        EXPECT_EQ(answers(one_thread, requests, {.sequences = 5}), want);
        const ChatModel ref(2, test_data("chat"), "ref");
        EXPECT_EQ(answers(ref, requests, {.sequences = 5}), want);
    }
}

TEST(Engine, GreedyFollowsTheForwardPassAndReturnsItsLogProbabilities) {
    const ChatModel m;
    Request r = request_of(m, 0, 0);
    r.top_logprobs = 3;
    r.prompt_logprobs = 2;
    const Heard heard = run_alone(*m.model, r, m.tokenizer);
    const Answered& answer = heard.choices[0];
    std::vector<int32_t> tokens = r.prompt;
    const size_t prompt = tokens.size(), vocab = 272;
    tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
    const auto log_probs = m.log_probs(tokens);
    for (size_t i = prompt; i < tokens.size(); ++i) {
        const double* row = &log_probs[(i - 1) * vocab];
        EXPECT_EQ(std::max_element(row, row + vocab) - row, tokens[i]);
        EXPECT_NEAR(std::bit_cast<float>(answer.log_prob_bits[i - prompt]), row[tokens[i]], 1e-5);
        const auto& top = answer.top[i - prompt];
        ASSERT_EQ(top.size(), 3u);
        EXPECT_EQ(top[0].id, tokens[i]);
        EXPECT_GE(top[0].logprob, top[1].logprob);
        EXPECT_GE(top[1].logprob, top[2].logprob);
        EXPECT_LE(std::count_if(row, row + vocab, [&](double v) { return v > double(top[2].logprob) + 1e-5; }), 2);
    }
    ASSERT_EQ(heard.prompt.size(), prompt);
    EXPECT_EQ(heard.prompt[0].id, tokens[0]);
    for (size_t i = 1; i < prompt; ++i) {
        EXPECT_EQ(heard.prompt[i].id, tokens[i]);
        EXPECT_NEAR(heard.prompt[i].logprob, log_probs[(i - 1) * vocab + size_t(tokens[i])], 1e-5);
        EXPECT_EQ(heard.prompt[i].top.size(), 2u);
        const double* row = &log_probs[(i - 1) * vocab];
        const auto above = [&](double by) {
            return std::count_if(row, row + vocab, [&](double v) { return v > row[tokens[i]] + by; });
        };
        EXPECT_GT(heard.prompt[i].rank, above(1e-5));
        EXPECT_LE(heard.prompt[i].rank, above(-1e-5));
    }
}

TEST(Engine, ChoicesShareThePromptAndAreTheAnswersOfTheirSequences) {
    const ChatModel m;
    Request r = request_of(m, 3, 1);
    r.sequence = 40;
    r.choices = 5;
    std::vector<Answered> want;
    for (uint64_t i = 0; i < 5; ++i) {
        Request one = r;
        one.choices = 1;
        one.sequence = 40 + i;
        want.push_back(run_alone(*m.model, one, m.tokenizer).choices[0]);
    }
    for (const int64_t sequences : {1, 3, 8}) {
        const auto engine = make_engine(*m.model, {.sequences = sequences}, m.tokenizer);
        r.prompt_logprobs = 0;
        const Heard heard = run_all(*engine, {r})[0];
        EXPECT_EQ(heard.choices, want) << sequences;
        EXPECT_EQ(heard.prompt.size(), r.prompt.size());
        EXPECT_EQ(heard.report.prompt_tokens, std::ssize(r.prompt));
        if (sequences < 8) continue;  // otherwise some choices wait and read the prompt themselves
        int64_t rows = 0;
        for (const Answered& a : heard.choices) rows += std::ssize(a.ids);
        EXPECT_EQ(engine->stats().step_rows, std::ssize(r.prompt) - 1 + rows);
    }
    r.prompt = {5};
    EXPECT_EQ(run_all(*make_engine(*m.model, {}, m.tokenizer), {r})[0].choices.size(), 5u);
}

TEST(Engine, StopsAtAStopStringAnEndTokenTheLimitAndTheEndOfTheContext) {
    const ChatModel m;
    Request r = request_of(m, 3, 1);
    const Answered free = run_alone(*m.model, r, m.tokenizer).choices[0];
    ASSERT_GT(free.text.size(), 12u);
    r.stop = {free.text.substr(7, 3)};
    Answered stopped = run_alone(*m.model, r, m.tokenizer).choices[0];
    EXPECT_EQ(stopped.text, free.text.substr(0, free.text.find(r.stop[0])));
    EXPECT_EQ(stopped.finish, FinishReason::stop);
    r.keep_stop = true;
    EXPECT_EQ(run_alone(*m.model, r, m.tokenizer).choices[0].text, stopped.text + r.stop[0]);
    r.min_tokens = std::ssize(free.ids);  // the stop string appears before min_tokens
    EXPECT_EQ(run_alone(*m.model, r, m.tokenizer).choices[0].text, free.text);

    Request ends = request_of(m, 0, 0);
    const Answered greedy = run_alone(*m.model, ends, m.tokenizer).choices[0];
    ends.eos = {greedy.ids[2]};
    const Answered ended = run_alone(*m.model, ends, m.tokenizer).choices[0];
    EXPECT_EQ(ended.finish, FinishReason::stop);
    EXPECT_EQ(ended.ids.back(), greedy.ids[2]);
    EXPECT_LE(ended.ids.size(), 3u);
    ends.min_tokens = 6;
    const Answered late = run_alone(*m.model, ends, m.tokenizer).choices[0];
    for (size_t i = 0; i < 6 && i < late.ids.size(); ++i) EXPECT_NE(late.ids[i], greedy.ids[2]);
    EXPECT_GT(late.ids.size(), 6u);

    const Answered two = run_alone(*m.model, request_of(m, 0, 0, 2), m.tokenizer).choices[0];
    EXPECT_EQ(two.ids.size(), 2u);
    EXPECT_EQ(two.finish, FinishReason::length);
    const auto engine = make_engine(*m.model, {.context = 64}, m.tokenizer);
    EXPECT_EQ(engine->capacity(), 64);
    Request last = request_of(m, 0, 0, 1000);
    last.eos = {};
    const Answered cut = run_all(*engine, {last})[0].choices[0];
    EXPECT_EQ(last.prompt.size() + cut.ids.size(), 64u);
    EXPECT_EQ(cut.finish, FinishReason::length);
}

TEST(Engine, BiasBadWordsAndAllowedTokensRestrictTheNextToken) {
    const ChatModel m;
    Request r = request_of(m, 1, 1, 40);
    r.eos = {};
    const Answered free = run_alone(*m.model, r, m.tokenizer).choices[0];
    r.bias = {{free.ids[0], -100.0f}};
    EXPECT_EQ(std::ranges::count(run_alone(*m.model, r, m.tokenizer).choices[0].ids, free.ids[0]), 0);
    r.bias = {{77, 1000.0f}};
    EXPECT_EQ(std::ranges::count(run_alone(*m.model, r, m.tokenizer).choices[0].ids, 77), 40);
    r.bias = {};
    r.bad_words = {{free.ids[0]}, {free.ids[1], free.ids[2]}};
    const Answered good = run_alone(*m.model, r, m.tokenizer).choices[0];
    EXPECT_EQ(std::ranges::count(good.ids, free.ids[0]), 0);
    const std::vector<int32_t> pair{free.ids[1], free.ids[2]};
    EXPECT_TRUE(std::ranges::search(good.ids, pair).empty());
    r.bad_words = {};
    r.allowed = {3, 9, 100};
    r.eos = {5};
    const Answered few = run_alone(*m.model, r, m.tokenizer).choices[0];
    for (const int32_t id : few.ids) EXPECT_TRUE(id == 3 || id == 9 || id == 100 || id == 5) << id;
    EXPECT_GT(few.ids.size(), 1u);
}

// A constraint that permits only "7 8 7 8 ... end".
class Alternating : public TokenConstraint {
public:
    explicit Alternating(int pairs) : left_(2 * pairs) {}
    std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<Alternating>(*this); }
    void mask(std::span<uint32_t> allowed) override {
        std::ranges::fill(allowed, 0u);
        if (left_ > 0) allowed[0] = 1u << next();
    }
    bool accept(int32_t token) override {
        if (left_ == 0 || token != next()) return false;
        --left_;
        return true;
    }
    bool may_end() const override { return left_ % 2 == 0; }
    bool finished() const override { return left_ == 0; }

private:
    int32_t next() const { return left_ % 2 == 0 ? 7 : 8; }
    int left_;
};

TEST(Engine, AConstraintIsFollowedAndEndsTheAnswer) {
    const ChatModel m;
    Request r = request_of(m, 1, 1, 40);
    r.eos = {};
    r.constraint = std::make_shared<Alternating>(3);
    r.choices = 2;
    for (const int64_t drafts : {0, 4}) {
        r.drafts = drafts;
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        const auto heard = run_all(*engine, {r, request_of(m, 0, 1)});
        for (const Answered& a : heard[0].choices) {
            EXPECT_EQ(a.ids, (std::vector<int32_t>{7, 8, 7, 8, 7, 8}));
            EXPECT_EQ(a.finish, FinishReason::stop);
        }
        EXPECT_EQ(engine->stats().accepted_tokens > 0, drafts > 0);
    }
    r.choices = 1;
    r.eos = {9};  // the end token is allowed after every pair
    const Answered ended = run_alone(*m.model, r, m.tokenizer).choices[0];
    EXPECT_EQ(ended.finish, FinishReason::stop);
    for (size_t i = 0; i + 1 < ended.ids.size(); ++i) EXPECT_EQ(ended.ids[i], i % 2 == 0 ? 7 : 8);
    r.constraint = std::make_shared<Alternating>(0);  // permits no token
    EXPECT_TRUE(run_alone(*m.model, r, m.tokenizer).choices[0].ids.empty());
    r.constraint = std::make_shared<Alternating>(2);
    r.bad_words = {{8}};
    const Heard stuck = run_alone(*m.model, r, m.tokenizer);
    EXPECT_EQ(stuck.choices[0].finish, FinishReason::error);
    EXPECT_NE(stuck.error.find("no token is allowed after"), std::string::npos) << stuck.error;
    EXPECT_EQ(stuck.error_kind, ErrorKind::usage);
}

TEST(Engine, CancelledAndLateRequestsEndAndTheOthersContinue) {
    const ChatModel m;
    const auto engine = make_engine(*m.model, {.sequences = 2, .queue = 8}, m.tokenizer);
    std::vector<Heard> heard(4);
    std::vector<uint64_t> handles;
    for (size_t i = 0; i < 4; ++i) {
        Request r = request_of(m, i, 1, 200);
        r.eos = {};
        if (i == 3) r.deadline = EngineClock::now() - std::chrono::seconds(1);
        handles.push_back(engine->submit(r, [&heard, i](const AnswerEvent& e) { heard[i].hear(e); }).handle);
    }
    while (heard[0].choices[0].ids.size() < 5) ASSERT_TRUE(engine->step());
    engine->cancel(handles[0]);
    engine->cancel(handles[2]);  // it is waiting
    engine->cancel(12345);       // an unknown handle
    ASSERT_TRUE(engine->step());
    EXPECT_EQ(heard[0].choices[0].finish, FinishReason::cancelled);
    EXPECT_EQ(heard[2].choices[0].finish, FinishReason::cancelled);
    EXPECT_EQ(heard[3].choices[0].finish, FinishReason::deadline);
    const size_t said = heard[0].choices[0].ids.size();
    while (engine->step()) {
    }
    EXPECT_EQ(heard[0].choices[0].ids.size(), said);
    EXPECT_EQ(heard[1].choices[0].ids.size(), 200u);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.finished_cancelled, 2);
    EXPECT_EQ(stats.finished_deadline, 1);
    EXPECT_EQ(stats.finished_length, 1);
    EXPECT_EQ(stats.used_pages, 0);
}

TEST(Engine, RefusesRequestsThatCanNeverRunOrExceedTheQueue) {
    const ChatModel m;
    const auto engine = make_engine(*m.model, {.sequences = 1, .queue = 3}, m.tokenizer);
    const auto refused = [&](auto change) {
        Request r = request_of(m, 0, 1);
        change(r);
        const Admission a = engine->submit(r, {});
        EXPECT_EQ(a.refusal, Admission::Refusal::invalid);
        return a.message;
    };
    EXPECT_EQ(refused([](Request& r) { r.prompt = {}; }), "the prompt has no tokens");
    EXPECT_EQ(refused([](Request& r) {
                  r.prompt = {1, 272};
              }),
              "the prompt's token 1 is 272; the model's vocabulary has 272");
    EXPECT_NE(refused([](Request& r) { r.prompt.assign(5000, 1); }).find("leaves no room"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.sampling.top_p = 2; }).find("top-p"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.choices = 0; }).find("n 0"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.min_tokens = 30; }).find("min_tokens"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.resumed = std::ssize(r.prompt); }).find("resumed"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.resumed = 1, r.sampling.presence_penalty = 1; }).find("resumed"),
              std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.bias = {{-1, 1.0f}}; }).find("logit_bias"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.bias = {{1, NAN}}; }).find("logit_bias"), std::string::npos);
    EXPECT_NE(refused([](Request& r) { r.bad_words = {{}}; }).find("bad word"), std::string::npos);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine->submit(request_of(m, 0, 1), {}).accepted());
    const Admission full = engine->submit(request_of(m, 0, 1), {});
    EXPECT_EQ(full.refusal, Admission::Refusal::full);
    EXPECT_GE(full.retry_seconds, 1);
    engine->drain(EngineClock::now() + std::chrono::hours(1));
    EXPECT_EQ(engine->stats().finished_length + engine->stats().finished_stop, 3);
    EXPECT_EQ(engine->submit(request_of(m, 0, 1), {}).refusal, Admission::Refusal::draining);
    const auto bare = make_engine(*m.model, {});
    Request stops = request_of(m, 0, 1);
    stops.stop = {"x"};
    EXPECT_EQ(bare->submit(stops, {}).refusal, Admission::Refusal::invalid);
}

TEST(Engine, AnOwnThreadServesManyRequestsAndDrains) {
    const ChatModel m;
    std::vector<Request> requests;
    std::vector<Answered> want;
    for (size_t i = 0; i < 20; ++i) {
        requests.push_back(request_of(m, i % 5, 1));
        requests.back().sequence = i;
        want.push_back(run_alone(*m.model, requests.back(), m.tokenizer).choices[0]);
    }
    std::vector<Heard> heard(20);
    {
        const auto engine = make_engine(*m.model, {.sequences = 6}, m.tokenizer);
        engine->start();
        std::vector<std::thread> clients;
        for (size_t c = 0; c < 4; ++c)
            clients.emplace_back([&, c] {
                for (size_t i = c; i < 20; i += 4)
                    engine->submit(requests[i], [&heard, i](const AnswerEvent& e) { heard[i].hear(e); });
            });
        for (std::thread& t : clients) t.join();
        engine->drain(EngineClock::now() + std::chrono::hours(1));
        for (size_t i = 0; i < 20; ++i) EXPECT_EQ(heard[i].choices[0], want[i]);
        EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);
    }
    // A request that would run for long is cancelled at the deadline, and by the destructor.
    Request endless = request_of(m, 0, 1, 1 << 30);
    endless.eos = {};
    std::vector<Heard> cut(2);
    {
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        engine->start();
        engine->submit(endless, [&](const AnswerEvent& e) { cut[0].hear(e); });
        engine->drain(EngineClock::now());
        EXPECT_NE(cut[0].choices[0].finish, FinishReason::none);
    }
    {
        const auto engine = make_engine(*m.model, {}, m.tokenizer);
        engine->submit(endless, [&](const AnswerEvent& e) { cut[1].hear(e); });
    }
    EXPECT_EQ(cut[1].choices[0].finish, FinishReason::cancelled);
}

TEST(Engine, AContinuedConversationComputesOnlyNewTokens) {
    const ChatModel m;
    const auto engine = make_engine(*m.model, {.sequences = 2}, m.tokenizer);
    Request r = request_of(m, 1, 1, 8);
    for (int i = 0; i < 200; ++i) r.prompt.push_back(i);
    const Heard first = run_all(*engine, {r})[0];
    EXPECT_EQ(first.report.cached_tokens, 0);
    r.prompt.insert(r.prompt.end(), first.choices[0].ids.begin(), first.choices[0].ids.end());
    for (const int32_t id : m.encode(" and then", false)) r.prompt.push_back(id);
    const Answered fresh = run_alone(*m.model, r, m.tokenizer).choices[0];
    const Heard second = run_all(*engine, {r})[0];
    EXPECT_EQ(second.choices[0], fresh);
    EXPECT_EQ(second.report.cached_tokens, std::ssize(r.prompt) / 64 * 64);
    EXPECT_GE(second.report.cached_tokens, 192);
    r.cache_salt = "another tenant";
    EXPECT_EQ(run_all(*engine, {r})[0].report.cached_tokens, 0);
}

TEST(Engine, ASharedPrefixOfConcurrentRequestsIsComputedOnce) {
    const ChatModel m;
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
        Request& r = requests.emplace_back();
        for (int k = 0; k < 150; ++k) r.prompt.push_back((k * 7 + 3) % 250);
        for (int k = 0; k < 10; ++k) r.prompt.push_back((k * i + i) % 250);
        r.max_tokens = 4;
        r.eos = {};
    }
    const auto engine = make_engine(*m.model, {.sequences = 12}, m.tokenizer);
    const auto heard = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(heard[i].choices, run_alone(*m.model, requests[i], m.tokenizer).choices);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.prefix_hits, 11 * 128);
    EXPECT_EQ(stats.step_rows, 160 + 11 * 32 + 12 * 3);
}

TEST(Engine, PriorityDecidesTheOrderAndLongPromptsDoNotStarveShortOnes) {
    const ChatModel m;
    const auto engine = make_engine(*m.model, {.sequences = 3, .step_rows = 24, .mixed_rows = 20}, m.tokenizer);
    std::vector<int> order;
    const auto submit = [&](int name, int64_t prompt, int32_t priority) {
        Request r;
        for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>((i * (name + 2)) % 250));
        r.max_tokens = 2;
        r.eos = {};
        r.priority = priority;
        EXPECT_TRUE(engine
                        ->submit(r,
                                 [&order, name](const AnswerEvent& e) {
                                     if (e.finish != FinishReason::none) order.push_back(name);
                                 })
                        .accepted());
    };
    submit(0, 220, 0);
    submit(1, 215, 0);
    for (int i = 2; i < 8; ++i) submit(i, 4, 0);
    submit(8, 4, -1);
    while (engine->step()) {
    }
    ASSERT_EQ(order.size(), 9u);
    EXPECT_EQ(order[0], 8);
    const auto place = [&](int name) { return std::ranges::find(order, name) - order.begin(); };
    for (int i = 2; i < 8; ++i) EXPECT_LT(place(i), place(0)) << i;
    EXPECT_LT(place(0), place(1));
}

TEST(Engine, AStepWithAnswersHasFewPromptRows) {
    const ChatModel m;
    std::vector<int64_t> rows;
    EngineOptions options{.sequences = 4, .step_rows = 256, .mixed_rows = 16};
    options.on_step = [&](int64_t n) { rows.push_back(n); };
    const auto engine = make_engine(*m.model, options, m.tokenizer);
    Heard running, late;
    Request r = request_of(m, 0, 1, 60);
    r.eos = {};
    engine->submit(r, [&](const AnswerEvent& e) { running.hear(e); });
    engine->step();
    rows.clear();
    Request prompt;
    prompt.prompt.assign(500, 3);
    prompt.max_tokens = 1;
    engine->submit(prompt, [&](const AnswerEvent& e) { late.hear(e); });
    while (engine->step()) {
    }
    EXPECT_LE(*std::ranges::max_element(rows), 17);
    EXPECT_EQ(running.choices[0].ids.size(), 60u);
    EXPECT_EQ(late.choices[0].ids.size(), 1u);
}

}  // namespace
}  // namespace nibble::test
