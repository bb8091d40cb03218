// Mixed load from several threads on an engine with its own thread: all kinds of requests, cancellations at any time,
// and too little memory. Counters add up, memory and descriptors do not grow, and some answers are compared with their
// requests alone. NIBBLE_SOAK_SECONDS: duration (tools/soak); default: some hundred requests.
#include "engine/random_load.h"
#include "engine/small_models.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <thread>

namespace nibble::test {
namespace {

int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * 4096;
}

int64_t descriptors() {
    int64_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
    return n;
}

struct Tally {
    std::atomic<int64_t> submitted = 0, choices = 0, refused = 0, tokens = 0, reports = 0;
    std::array<std::atomic<int64_t>, 6> finished{};  // by FinishReason
};

// Keeps eight requests running until `go` returns false; returns requests to compare.
std::vector<std::pair<Request, Heard>> client(Engine& engine, LoadMaker maker, Tally& tally,
                                              const std::function<bool(int64_t)>& go) {
    struct Open {
        Request request;
        Heard heard;
        uint64_t handle = 0;
        int64_t cancel_in = -1;
    };
    std::mutex mutex;
    std::condition_variable wake;
    std::map<int64_t, std::unique_ptr<Open>> open;
    std::vector<int64_t> ended;
    std::vector<std::pair<Request, Heard>> sample;
    for (int64_t number = 0; go(number) || !open.empty();) {
        while (std::ssize(open) < 8 && go(number)) {
            const RandomLoad one = maker.load(1);
            auto entry = std::make_unique<Open>();
            entry->request = one.requests[0];
            entry->heard = Heard(entry->request.choices);
            entry->cancel_in = one.cancel_at[0];
            Open* const o = entry.get();
            const auto sink = [&, o, number](const AnswerEvent& e) {
                tally.tokens += std::ssize(e.tokens);
                if (e.finish != FinishReason::none) ++tally.finished[static_cast<size_t>(e.finish)];
                const std::lock_guard lock(mutex);
                o->heard.hear(e);
                if (!e.report) return;
                ++tally.reports;
                ended.push_back(number);
                wake.notify_one();
            };
            {
                const std::lock_guard lock(mutex);
                open.emplace(number, std::move(entry));
            }
            ++number;
            const Admission a = engine.submit(o->request, sink);
            if (a.accepted()) {
                o->handle = a.handle;
                ++tally.submitted;
                tally.choices += o->request.choices;
                if (o->cancel_in >= 0 && o->cancel_in % 3 == 0) engine.cancel(a.handle);
                continue;
            }
            EXPECT_EQ(a.refusal, Admission::Refusal::full) << a.message;
            ++tally.refused;
            const std::lock_guard lock(mutex);
            open.erase(number - 1);
            break;
        }
        std::unique_lock lock(mutex);
        wake.wait_for(lock, std::chrono::milliseconds(50), [&] { return !ended.empty(); });
        for (const int64_t n : std::exchange(ended, {})) {
            const auto at = open.find(n);
            if (n % 40 == 7 && sample.size() < 20)
                sample.emplace_back(std::move(at->second->request), std::move(at->second->heard));
            open.erase(at);
        }
        for (const auto& [n, o] : open)  // at a random time
            if (o->cancel_in >= 0 && !o->heard.choices[0].ids.empty()) engine.cancel(o->handle);
    }
    return sample;
}

TEST(Soak, CountersAddUpAndMemoryDoesNotGrow) {
    const char* const text = std::getenv("NIBBLE_SOAK_SECONDS");
    const double seconds = text ? std::atof(text) : 0;
    const auto start = EngineClock::now();
    const auto passed = [&] { return std::chrono::duration<double>(EngineClock::now() - start).count(); };
    int64_t handles = 0;
    for (const char* name : {"llama", "hybrid"}) {
        ThreadPool pool(2), other_pool(1);
        const auto model = load_small({name}, pool), other = load_small({name}, other_pool);
        const auto layouts = model->states();
        EngineOptions options{.sequences = 8, .step_rows = 96, .mixed_rows = 32, .queue = 24, .drafts = 2};
        options.kv_memory = std::max(pool_bytes(layouts, 640, 18), pool_bytes(layouts, 0, 40));
        const auto engine = make_engine(*model, options);
        engine->start();
        Tally tally;
        const double until = passed() + seconds / 2;
        std::vector<std::vector<std::pair<Request, Heard>>> samples(3);
        std::vector<std::thread> clients;
        std::atomic<bool> over = false;
        for (size_t c = 0; c < samples.size(); ++c)
            clients.emplace_back([&, c] {
                samples[c] = client(*engine, LoadMaker(model->config().vocab, uint32_t(100 + c), c == 0), tally,
                                    [&](int64_t n) { return text ? !over : n < 60; });
            });
        // Memory use after a tenth of the time equals that at the end.
        int64_t early = 0, late = 0;
        while (text && passed() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            late = std::max(late, resident_bytes());
            if (early == 0 && passed() > until - seconds / 2 * 0.9) early = resident_bytes(), late = 0;
        }
        over = true;
        for (std::thread& t : clients) t.join();
        engine->drain(EngineClock::now() + std::chrono::hours(1));
        const EngineStats s = engine->stats();
        const auto ended = [&](FinishReason r) { return tally.finished[static_cast<size_t>(r)].load(); };
        EXPECT_EQ(s.running + s.waiting + s.used_pages, 0);
        EXPECT_EQ(tally.reports, tally.submitted);
        EXPECT_EQ(s.generated_tokens, tally.tokens);
        EXPECT_EQ(s.finished_stop, ended(FinishReason::stop));
        EXPECT_EQ(s.finished_length, ended(FinishReason::length));
        EXPECT_EQ(s.finished_cancelled, ended(FinishReason::cancelled));
        EXPECT_EQ(s.finished_error, ended(FinishReason::error));
        EXPECT_EQ(s.finished_stop + s.finished_length + s.finished_cancelled + s.finished_error, tally.choices);
        EXPECT_EQ(s.histograms.e2e_request_latency.count(), tally.submitted);
        EXPECT_DOUBLE_EQ(s.histograms.request_generation_tokens.sum(), double(tally.tokens));
        EXPECT_EQ(s.histograms.iteration_tokens.count(), s.steps);
        EXPECT_TRUE(!text || s.finished_cancelled > 0);
        EXPECT_GT(s.prefix_hits, 0);
        EXPECT_GT(s.accepted_tokens, 0);
        if (text) {
            EXPECT_GT(early, 0);
            EXPECT_LE(late, early + (int64_t{4} << 20)) << "memory grows";
            std::cout << name << ": " << tally.submitted << " requests, " << tally.tokens << " tokens, "
                      << s.preemptions << " preemptions, " << tally.refused << " refused, " << early / 1000000
                      << " MB early, " << late / 1000000 << " MB at most later\n";
        }
        if (handles == 0) handles = descriptors();
        EXPECT_EQ(descriptors(), handles);
        int64_t compared = 0;
        for (const auto& list : samples)
            for (const auto& [request, heard] : list) {
                ++compared;
                const Heard alone = run_alone(*other, request);
                for (size_t c = 0; c < alone.choices.size(); ++c)
                    EXPECT_TRUE(heard.choices[c] == alone.choices[c] ||
                                (heard.choices[c].finish == FinishReason::cancelled &&
                                 heard.choices[c].begins(alone.choices[c])));
            }
        EXPECT_GT(compared, 0);
    }
}

}  // namespace
}  // namespace nibble::test
