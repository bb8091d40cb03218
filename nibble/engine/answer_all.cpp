#include "engine/answer_all.h"

#include <numeric>

namespace nibble {

Status answer_all(Engine& engine, std::vector<Request> requests, const AnswerHooks& hooks,
                  std::vector<WholeAnswer>& answers) {
    answers.clear();
    answers.resize(std::accumulate(requests.begin(), requests.end(), size_t{0},
                                   [](size_t n, const Request& r) { return n + static_cast<size_t>(r.choices); }));
    std::vector<uint64_t> handles;
    const auto cancel = [&] {
        for (const uint64_t handle : handles) engine.cancel(handle);
    };
    size_t next = 0, first = 0;
    bool stopped = false;
    while (true) {
        // Submits as many requests as the queue accepts.
        for (; next < requests.size() && !stopped; ++next) {
            const auto choices = static_cast<size_t>(requests[next].choices);
            const auto sink = [&answers, &hooks, first](const AnswerEvent& e) {
                const size_t at = first + static_cast<size_t>(e.choice);
                WholeAnswer& answer = answers[at];
                answer.tokens.insert(answer.tokens.end(), e.tokens.begin(), e.tokens.end());
                answer.prompt.insert(answer.prompt.end(), e.prompt.begin(), e.prompt.end());
                answer.text += e.text;
                if (hooks.on_text && !e.text.empty()) hooks.on_text(at, e.text);
                if (e.finish == FinishReason::none) return;
                answer.finish = e.finish;
                answer.error = e.error;
                if (hooks.on_finish) hooks.on_finish(at);
            };
            const Admission admitted = engine.submit(requests[next], sink);
            if (admitted.refusal == Admission::Refusal::full && !handles.empty()) break;
            if (!admitted.accepted()) {
                cancel();
                while (engine.step()) {
                }
                return fail("request {}: {}", next, admitted.message);
            }
            handles.push_back(admitted.handle);
            first += choices;
        }
        if (!engine.step() && (next == requests.size() || stopped)) break;
        if (!stopped && hooks.stop && hooks.stop->load(std::memory_order_relaxed)) {
            stopped = true;
            cancel();
        }
    }
    for (size_t i = 0; i < answers.size(); ++i) {
        if (answers[i].finish == FinishReason::error) return fail("answer {}: {}", i, answers[i].error);
        if (answers[i].finish == FinishReason::none) answers[i].finish = FinishReason::cancelled;
    }
    return Ok{};
}

}  // namespace nibble
