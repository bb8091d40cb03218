#include "rl/rollout.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace nibble {
namespace {

class GeneratedTask : public RolloutTask {
public:
    explicit GeneratedTask(GeneratedTaskOptions options) : options_(std::move(options)) {}

    Result<RolloutPrompt> prompt(uint64_t number) override {
        NIBBLE_TRY(TaskQuestion q, task_question(options_.kind, options_.difficulty, options_.seed, number));
        std::string text = options_.prompt;
        if (const size_t at = text.find("{}"); at != text.npos) text.replace(at, 2, q.prompt);
        NIBBLE_TRY(auto tokens, options_.encode(text));
        return RolloutPrompt{std::move(tokens), std::move(q.prompt), std::move(q.answer)};
    }

    Status judge(const std::vector<RolloutPrompt>& prompts, std::vector<Rollout>& rollouts) override {
        if (options_.environment) return ask(prompts, rollouts);
        for (Rollout& r : rollouts) {
            const RolloutPrompt& p = prompts[r.prompt];
            r.reward = task_reward(options_.kind, {p.question, p.expected}, r.text);
        }
        return Ok{};
    }

private:
    Status ask(const std::vector<RolloutPrompt>& prompts, std::vector<Rollout>& rollouts) {
        std::vector<EnvironmentRequest> requests;
        for (const Rollout& r : rollouts)
            requests.push_back({prompts[r.prompt].question, prompts[r.prompt].expected, r.text, 0, nullptr});
        const std::vector<EnvironmentReply> replies = options_.environment->judge(requests);
        for (size_t i = 0; i < rollouts.size(); ++i) {
            const EnvironmentReply& reply = replies[i];
            if (reply.failure)
                rollouts[i].failure = *reply.failure;
            else if (!reply.done)
                return fail("the environment asks for a second turn: several turns are not built yet");
            else
                rollouts[i].reward = reply.reward;
        }
        return Ok{};
    }

    GeneratedTaskOptions options_;
};

class RolloutClock {
public:
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Rollout rollout_of(WholeAnswer& answer, size_t prompt) {
    Rollout r{.prompt = prompt};
    for (const GeneratedToken& t : answer.tokens) {
        r.tokens.push_back(t.id);
        r.generated.push_back(t.logprob);
    }
    r.text = std::move(answer.text);
    r.cut = answer.finish == FinishReason::length;
    return r;
}

Result<std::vector<Request>> requests_of(const std::vector<RolloutPrompt>& prompts, const RolloutRequest& request) {
    std::vector<Request> list;
    for (size_t i = 0; i < prompts.size(); ++i) {
        const uint64_t number = request.first_prompt + i;
        const int64_t room = request.length - std::ssize(prompts[i].tokens);
        if (room < 1 || prompts[i].tokens.empty())
            return fail("prompt {}: {} tokens leave no room for an answer in {}", number, prompts[i].tokens.size(),
                        request.length);
        Request& r = list.emplace_back();
        r.prompt = prompts[i].tokens;
        r.sampling.seed = request.seed;
        r.sequence = number * static_cast<uint64_t>(request.answers);
        r.choices = static_cast<int32_t>(request.answers);
        r.max_tokens = request.most_tokens > 0 ? std::min(room, request.most_tokens) : room;
        r.eos = request.end_tokens;
        r.stop = request.stop_texts;
        r.cache_salt = request.cache_salt;
    }
    return list;
}

}  // namespace

std::unique_ptr<RolloutTask> generated_task(GeneratedTaskOptions options) {
    return std::make_unique<GeneratedTask>(std::move(options));
}

Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request) {
    RolloutClock clock;
    RolloutBatch batch;
    for (int64_t i = 0; i < request.prompts; ++i) {
        NIBBLE_TRY(RolloutPrompt prompt, task.prompt(request.first_prompt + static_cast<uint64_t>(i)));
        batch.prompts.push_back(std::move(prompt));
    }
    NIBBLE_TRY(std::vector<Request> requests, requests_of(batch.prompts, request));
    std::vector<WholeAnswer> answers;
    NIBBLE_CHECK(answer_all(engine, std::move(requests), {.stop = request.stop}, answers));
    for (size_t i = 0; i < answers.size(); ++i) {
        if (answers[i].finish == FinishReason::cancelled) batch.stopped = true;
        batch.rollouts.push_back(rollout_of(answers[i], i / static_cast<size_t>(request.answers)));
    }
    batch.generate_seconds = clock.lap();
    if (batch.stopped) return batch;
    NIBBLE_CHECK(task.judge(batch.prompts, batch.rollouts));
    for (Rollout& r : batch.rollouts)
        if (r.reward && !std::isfinite(*r.reward)) r.failure = fmt::format("reward {}", *r.reward), r.reward.reset();
    batch.reward_seconds = clock.lap();
    return batch;
}

}  // namespace nibble
