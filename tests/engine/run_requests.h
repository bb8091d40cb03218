// Runs requests through an engine that the test steps, and collects the answers.
#pragma once

#include "engine/engine.h"
#include "model/memory_checkpoint.h"
#include "model/models.h"
#include "support/chat_model.h"

#include <bit>
#include <functional>

namespace nibble {

inline void PrintTo(const GeneratedToken& t, std::ostream* out) { *out << t.id << " at " << t.logprob; }

}  // namespace nibble

namespace nibble::test {

struct Answered {
    std::vector<int32_t> ids;
    std::vector<uint32_t> log_prob_bits;
    std::vector<std::vector<TokenLogprob>> top;
    std::string text;
    FinishReason finish = FinishReason::none;
    bool operator==(const Answered&) const = default;
    // Returns true if this answer, which was cancelled, is a beginning of the whole answer.
    bool begins(const Answered& whole) const {
        return ids.size() <= whole.ids.size() && std::equal(ids.begin(), ids.end(), whole.ids.begin()) &&
               std::equal(log_prob_bits.begin(), log_prob_bits.end(), whole.log_prob_bits.begin()) &&
               whole.text.starts_with(text);
    }
};
inline void PrintTo(const Answered& a, std::ostream* out) {
    *out << finish_name(a.finish) << " '" << a.text << "'";
    for (const int32_t id : a.ids) *out << ' ' << id;
}

// The answers to one request, collected while the engine runs.
struct Heard {
    std::vector<Answered> choices;
    std::vector<GeneratedToken> prompt;
    std::string error;
    ErrorKind error_kind = ErrorKind::other;
    RequestReport report;
    int reports = 0;

    explicit Heard(int32_t n = 1) : choices(static_cast<size_t>(n)) {}
    void hear(const AnswerEvent& e) {
        Answered& a = choices[static_cast<size_t>(e.choice)];
        EXPECT_EQ(a.finish, FinishReason::none) << "an event after the last one";
        for (const GeneratedToken& t : e.tokens) {
            a.ids.push_back(t.id);
            a.log_prob_bits.push_back(std::bit_cast<uint32_t>(t.logprob));
            a.top.push_back(t.top);
        }
        a.text += e.text;
        a.finish = e.finish;
        if (!e.prompt.empty()) prompt.assign(e.prompt.begin(), e.prompt.end());
        if (!e.error.empty()) error = e.error, error_kind = e.error_kind;
        if (e.report) report = *e.report, ++reports;
    }
};

inline std::unique_ptr<Engine> make_engine(const LanguageModel& model, const EngineOptions& options,
                                           std::optional<Tokenizer> tokenizer = {}) {
    EngineOptions o = options;
    if (o.kv_memory == 0) o.kv_memory = int64_t{64} << 20;
    auto engine =
        Engine::create(std::shared_ptr<const LanguageModel>(std::shared_ptr<void>(), &model), std::move(tokenizer), o);
    EXPECT_TRUE(engine.ok()) << engine.error().message();
    return engine.ok() ? *std::move(engine) : nullptr;
}

// Runs all requests at once until they end.
inline std::vector<Heard> run_all(Engine& engine, const std::vector<Request>& requests) {
    std::vector<Heard> heard;
    for (const Request& r : requests) heard.emplace_back(r.choices);
    for (size_t i = 0; i < requests.size(); ++i) {
        const Admission a = engine.submit(requests[i], [&heard, i](const AnswerEvent& e) { heard[i].hear(e); });
        EXPECT_TRUE(a.accepted()) << a.message;
    }
    while (engine.step()) {
    }
    for (const Heard& h : heard) EXPECT_EQ(h.reports, 1);
    return heard;
}

// Runs a request alone, without cache and drafts.
inline Heard run_alone(const LanguageModel& model, const Request& request, std::optional<Tokenizer> tokenizer = {}) {
    const auto engine = make_engine(model, {.sequences = 1, .prefix_cache = false}, std::move(tokenizer));
    Request r = request;
    r.drafts = 0;
    r.deadline = {};
    return run_all(*engine, {r})[0];
}

}  // namespace nibble::test
