#include "rl/rollout.h"

namespace nibble {
namespace {

class QuestionTask : public RolloutTask {
public:
    explicit QuestionTask(QuestionTaskOptions options) : options_(std::move(options)) {}

    Result<RolloutPrompt> prompt(uint64_t number) override {
        NIBBLE_TRY(TaskQuestion q, options_.question(number));
        const std::string text = task_prompt(options_.prompt, q.prompt);
        const std::string name = q.where.empty() ? fmt::format("prompt {}", number) : q.where;
        NIBBLE_TRY(auto tokens, options_.encode(text).within(name));
        return RolloutPrompt{.tokens = std::move(tokens),
                             .question = std::move(q.prompt),
                             .expected = std::move(q.answer),
                             .where = std::move(q.where)};
    }

    Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) override {
        for (Rollout* r : rollouts) r->answer = options_.answer ? options_.answer(r->text) : r->text;
        if (options_.environment) return ask(prompts, rollouts);
        const auto judge_one = [&](int64_t i) {
            Rollout* r = rollouts[static_cast<size_t>(i)];
            if (options_.stop && options_.stop->load()) {
                r->failure = "the run was stopped";
                return;
            }
            const RolloutPrompt& p = prompts[r->prompt];
            const auto reward = options_.reward({p.question, p.expected, p.where}, r->text);
            if (reward.ok())
                r->reward = *reward;
            else
                r->failure = reward.error().message();
        };
        if (options_.pool) {
            options_.pool->parallel_for(std::ssize(rollouts), judge_one);
        } else {
            for (int64_t i = 0; i < std::ssize(rollouts); ++i) judge_one(i);
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
                r.failure = prompts[r.prompt].name() + ": " + *reply.failure;
                continue;
            }
            r.reward = r.reward.value_or(0) + reply.reward;
            r.state = std::move(reply.state);
            if (reply.done) continue;
            auto observation = options_.encode_observation(reply.observation, r.tokens.back());
            if (observation.ok())
                r.observation = *std::move(observation);
            else
                r.failure = observation.error().message();
        }
        return Ok{};
    }

    QuestionTaskOptions options_;
};

}  // namespace

std::string task_prompt(std::string text, std::string_view question) {
    if (const size_t at = text.find("{}"); at != text.npos) text.replace(at, 2, question);
    return text;
}

std::unique_ptr<RolloutTask> question_task(QuestionTaskOptions options) {
    return std::make_unique<QuestionTask>(std::move(options));
}

RolloutBatch take_prompts(RolloutBatch& from, std::span<const uint8_t> chosen) {
    RolloutBatch taken, left;
    if (from.prompts.empty()) return taken;
    const size_t answers = from.rollouts.size() / from.prompts.size();
    for (size_t p = 0; p < from.prompts.size(); ++p) {
        RolloutBatch& to = chosen[p] ? taken : left;
        for (Rollout& r : std::span(from.rollouts).subspan(p * answers, answers)) {
            r.prompt = to.prompts.size();
            to.rollouts.push_back(std::move(r));
        }
        to.prompts.push_back(std::move(from.prompts[p]));
    }
    from.prompts = std::move(left.prompts), from.rollouts = std::move(left.rollouts);
    return taken;
}

}  // namespace nibble
