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

    Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) override {
        if (options_.environment) return ask(prompts, rollouts);
        for (Rollout* r : rollouts) {
            const RolloutPrompt& p = prompts[r->prompt];
            r->reward = task_reward(options_.kind, {p.question, p.expected}, r->text);
        }
        return Ok{};
    }

private:
    Status ask(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) {
        std::vector<EnvironmentRequest> requests;
        for (const Rollout* r : rollouts) {
            const RolloutPrompt& p = prompts[r->prompt];
            requests.push_back({p.question, p.expected, r->text, r->turns - 1, r->state});
        }
        std::vector<EnvironmentReply> replies = options_.environment->judge(requests);
        for (size_t i = 0; i < rollouts.size(); ++i) {
            Rollout& r = *rollouts[i];
            EnvironmentReply& reply = replies[i];
            if (reply.failure) {
                r.failure = *reply.failure;
                continue;
            }
            r.reward = r.reward.value_or(0) + reply.reward;
            r.state = std::move(reply.state);
            if (reply.done) continue;
            NIBBLE_TRY(r.observation, options_.encode_observation(reply.observation, r.tokens.back()));
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

void add_turn(Rollout& r, WholeAnswer&& answer) {
    for (const GeneratedToken& t : answer.tokens) {
        r.tokens.push_back(t.id);
        r.generated.push_back(t.logprob);
    }
    r.written.resize(r.tokens.size(), 1);
    r.text = std::move(answer.text);
    r.cut = answer.finish == FinishReason::length;
    ++r.turns;
}

// The answers of a batch, turn by turn.
class Conversations {
public:
    Conversations(Engine& engine, RolloutTask& task, const RolloutRequest& request, RolloutBatch& batch)
        : engine_(engine), task_(task), request_(request), batch_(batch) {}

    Status begin() {
        for (int64_t i = 0; i < request_.prompts; ++i) {
            const uint64_t number = request_.first_prompt + static_cast<uint64_t>(i);
            NIBBLE_TRY(RolloutPrompt prompt, task_.prompt(number));
            const int64_t tokens = std::ssize(prompt.tokens);
            if (tokens < 1 || tokens >= request_.length)
                return fail("prompt {}: {} tokens leave no room for an answer in {}", number, tokens, request_.length);
            batch_.prompts.push_back(std::move(prompt));
            for (int64_t a = 0; a < request_.answers; ++a)
                batch_.rollouts.push_back({.prompt = static_cast<size_t>(i)});
        }
        for (Rollout& r : batch_.rollouts) open_.push_back(&r);
        return Ok{};
    }

    // One turn of all that are open. False: nothing is open any more, or a stop was asked for.
    Result<bool> turn() {
        NIBBLE_CHECK(generate());
        batch_.generate_seconds += clock_.lap();
        if (batch_.stopped) return false;
        NIBBLE_CHECK(task_.judge(batch_.prompts, open_));
        std::vector<Rollout*> open;
        for (Rollout* r : open_) {
            if (r->reward && !std::isfinite(*r->reward)) r->failure = fmt::format("reward {}", *r->reward);
            if (!r->failure.empty()) r->reward.reset(), r->observation.clear();
            if (goes_on(*r)) open.push_back(r);
        }
        open_ = std::move(open);
        batch_.reward_seconds += clock_.lap();
        return !open_.empty();
    }

private:
    int64_t room(const Rollout& r) const {
        return request_.length - std::ssize(batch_.prompts[r.prompt].tokens) - std::ssize(r.tokens);
    }

    bool goes_on(Rollout& r) const {
        if (r.observation.empty() || r.turns == request_.most_turns) return false;
        if (room(r) <= std::ssize(r.observation)) {
            r.cut = true;
            return false;
        }
        r.tokens.insert(r.tokens.end(), r.observation.begin(), r.observation.end());
        r.generated.resize(r.tokens.size(), 0);
        r.written.resize(r.tokens.size(), 0);
        r.observation.clear();
        return true;
    }

    Request request_of(const Rollout& r) const {
        const auto number = static_cast<uint64_t>(&r - batch_.rollouts.data());
        Request q;
        q.prompt = batch_.prompts[r.prompt].tokens;
        q.prompt.insert(q.prompt.end(), r.tokens.begin(), r.tokens.end());
        q.sampling.seed = request_.seed;
        q.sampling.temperature = request_.temperature;
        q.logprobs_at_temperature = request_.temperature != 1;
        q.sequence = request_.first_prompt * static_cast<uint64_t>(request_.answers) + number;
        q.max_tokens = request_.most_tokens > 0 ? std::min(room(r), request_.most_tokens) : room(r);
        q.eos = request_.end_tokens;
        q.stop = request_.stop_texts;
        q.cache_salt = request_.cache_salt;
        return q;
    }

    Status generate() {
        // Answers that begin share the work on their prompt.
        std::vector<Request> list;
        for (size_t i = 0; i < open_.size(); ++i)
            if (i > 0 && open_[i]->tokens.empty() && open_[i]->prompt == open_[i - 1]->prompt)
                ++list.back().choices;
            else
                list.push_back(request_of(*open_[i]));
        std::vector<WholeAnswer> answers;
        NIBBLE_CHECK(answer_all(engine_, std::move(list), {.stop = request_.stop}, answers));
        for (size_t i = 0; i < open_.size(); ++i) {
            if (answers[i].finish == FinishReason::cancelled) batch_.stopped = true;
            add_turn(*open_[i], std::move(answers[i]));
        }
        return Ok{};
    }

    Engine& engine_;
    RolloutTask& task_;
    const RolloutRequest& request_;
    RolloutBatch& batch_;
    std::vector<Rollout*> open_;
    RolloutClock clock_;
};

}  // namespace

std::unique_ptr<RolloutTask> generated_task(GeneratedTaskOptions options) {
    return std::make_unique<GeneratedTask>(std::move(options));
}

Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request) {
    RolloutBatch batch;
    Conversations conversations(engine, task, request, batch);
    NIBBLE_CHECK(conversations.begin());
    for (bool more = true; more;) {
        NIBBLE_TRY(more, conversations.turn());
    }
    return batch;
}

}  // namespace nibble
