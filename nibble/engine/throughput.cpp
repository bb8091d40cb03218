#include "engine/throughput.h"

#include "base/clock.h"
#include "kernels/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace nibble {
namespace {

// Philox streams that differ from those for sampling.
constexpr uint64_t prompt_streams = uint64_t{1} << 63;

std::vector<int32_t> random_prompt(uint64_t seed, uint64_t number, int64_t tokens, int64_t vocab) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i)
        ids.push_back(
            static_cast<int32_t>(sampling_bits(seed, prompt_streams + number, i) % static_cast<uint64_t>(vocab)));
    return ids;
}

}  // namespace

Result<Throughput> measure_throughput(Engine& engine, const ThroughputLoad& load,
                                      const std::function<void(int64_t finished)>& progress) {
    const int64_t vocab = engine.model().config().vocab;
    std::vector<Request> requests;
    for (int64_t i = 0; i < load.requests; ++i) {
        Request& r = requests.emplace_back();
        r.prompt = random_prompt(load.seed, static_cast<uint64_t>(i), load.input, vocab);
        for (size_t k = static_cast<size_t>(load.period); load.period > 0 && k < r.prompt.size(); ++k)
            r.prompt[k] = r.prompt[k - static_cast<size_t>(load.period)];
        r.max_tokens = load.output;
        r.sampling.temperature = load.greedy ? 0.0f : 1.0f;
        r.sampling.seed = load.seed;
        r.sequence = static_cast<uint64_t>(i);
        // Spreads the requests of a share evenly over the load.
        const auto within = [&](double share) {
            return std::floor(share * static_cast<double>(i + 1)) > std::floor(share * static_cast<double>(i));
        };
        if (within(load.masked)) r.bad_words = {{0}};
        if (within(load.biased)) r.bias = {{0, 0.0f}};
    }
    Throughput t;
    std::string trouble;
    const EngineStats before = engine.stats();
    const auto start = EngineClock::now();
    for (Request& request : requests) {
        const Admission admitted = engine.submit(std::move(request), [&](const AnswerEvent& e) {
            t.output_tokens += std::ssize(e.tokens);
            if (e.finish == FinishReason::none) return;
            ++t.requests;
            if (progress) progress(t.requests);
            if (e.finish != FinishReason::length && trouble.empty())
                trouble = fmt::format("a request ended with '{}' {}", finish_name(e.finish), e.error);
        });
        if (!admitted.accepted()) return fail("{}", admitted.message);
    }
    while (engine.step()) t.most_running = std::max(t.most_running, engine.stats().running);
    t.seconds = seconds_since(start);
    if (!trouble.empty()) return fail("{}", trouble);
    const EngineStats after = engine.stats();
    t.input_tokens = load.input * load.requests;
    t.steps = after.steps - before.steps;
    t.step_rows = after.step_rows - before.step_rows;
    t.overlapped_steps = after.overlapped_steps - before.overlapped_steps;
    t.preemptions = after.preemptions - before.preemptions;
    t.draft_tokens = after.draft_tokens - before.draft_tokens;
    t.deferred_rows = after.deferred_rows - before.deferred_rows;
    t.host_rows = after.host_rows - before.host_rows;
    t.accepted_tokens = after.accepted_tokens - before.accepted_tokens;
    t.prompt_step_seconds = after.prompt_step_seconds - before.prompt_step_seconds;
    return t;
}

Result<double> measure_steady_decode(const LanguageModel& model, int64_t sequences, int64_t context, int64_t steps,
                                     int repetitions) {
    const int64_t vocab = model.config().vocab, each = steps + 2 * kv_page_tokens;
    NIBBLE_TRY(const auto pool, model.make_pool(context + (sequences + 1) * each, sequences + 1));
    std::vector<float> logits(static_cast<size_t>(vocab * (model.chooses() ? 1 : sequences)));
    Sequence past = pool->sequence();
    const std::vector<int32_t> text = random_prompt(2, 0, std::max(context, steps), vocab);
    for (int64_t at = 0; at < context;) {
        const int64_t piece = std::min<int64_t>(context - at, 2048);
        const auto tokens = std::span(text).subspan(static_cast<size_t>(at), static_cast<size_t>(piece));
        NIBBLE_CHECK(model.evaluate(Batch({{&past, tokens, piece - 1}}), std::span(logits).first(size_t(vocab))));
        at += piece;
    }
    std::vector<double> rates;
    std::vector<ChosenToken> chosen(static_cast<size_t>(sequences));
    for (int r = 0; r < repetitions; ++r) {
        std::vector<Sequence> forks;
        for (int64_t i = 0; i < sequences; ++i) {
            NIBBLE_TRY(Sequence fork, past.fork());
            forks.push_back(std::move(fork));
        }
        const auto start = EngineClock::now();
        for (int64_t i = 0; i < steps; ++i) {
            std::vector<Segment> segments;
            for (Sequence& s : forks) segments.push_back({&s, std::span(text).subspan(size_t(i), 1), 0});
            if (model.chooses()) {
                const std::vector<TokenRequest> requests(
                    forks.size(), TokenRequest{.params = {.temperature = 0}, .position = context + i});
                NIBBLE_CHECK(model.choose(Batch(std::move(segments)), requests, chosen));
            } else {
                NIBBLE_CHECK(model.evaluate(Batch(std::move(segments)), logits));
            }
        }
        rates.push_back(static_cast<double>(sequences * steps) / seconds_since(start));
    }
    std::ranges::sort(rates);
    return rates[rates.size() / 2];
}

}  // namespace nibble
