// Rollouts: answers of the serving engine to prompts of a task, with the log-probability of every token as the engine
// computed it, and their rewards.
#pragma once

#include "rl/environment.h"
#include "rl/tasks.h"
#include "serve/answer_all.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct RolloutPrompt {
    std::vector<int32_t> tokens;
    std::string question, expected;  // for whoever judges the answer
};

// One answer, from the engine to the loss.
struct Rollout {
    size_t prompt = 0;             // index of its prompt
    std::vector<int32_t> tokens;   // an end token included; at least one
    std::vector<float> generated;  // log-probability of each
    std::string text;
    bool cut = false;                  // at its limit, without an end
    std::optional<double> reward;      // none: it could not be judged, and counts nowhere
    std::string failure;               // why
    double shaped = 0, advantage = 0;  // reward after scaling and shaping
};

// What the model is asked, and what its answers are worth.
class RolloutTask {
public:
    virtual ~RolloutTask() = default;
    // The prompt of this number: always the same one.
    virtual Result<RolloutPrompt> prompt(uint64_t number) = 0;
    // Sets reward or failure of every rollout.
    virtual Status judge(const std::vector<RolloutPrompt>& prompts, std::vector<Rollout>& rollouts) = 0;
};

// Questions of a built-in task (rl/tasks.h), judged by its own rule or by an environment.
struct GeneratedTaskOptions {
    TaskKind kind = TaskKind::sum;
    int difficulty = 1;
    uint64_t seed = 0;
    std::string prompt = "{}";  // the question takes the place of {}
    std::function<Result<std::vector<int32_t>>(const std::string& prompt)> encode;
    std::unique_ptr<Environment> environment;  // may be null
};
std::unique_ptr<RolloutTask> generated_task(GeneratedTaskOptions options);

struct RolloutRequest {
    uint64_t first_prompt = 0;
    int64_t prompts = 1, answers = 1;  // of each prompt
    int64_t length = 512;              // tokens of a prompt and its answer
    int64_t most_tokens = 0;           // of an answer; 0: what the length leaves
    uint64_t seed = 0;                 // answer a of prompt number n draws from sequence n * answers + a
    std::vector<int32_t> end_tokens;
    std::vector<std::string> stop_texts;
    std::string cache_salt;  // of the weights' version: no other version's keys and values are read
    const std::atomic<bool>* stop = nullptr;
};

struct RolloutBatch {
    std::vector<RolloutPrompt> prompts;
    std::vector<Rollout> rollouts;  // `answers` of each prompt, in order
    bool stopped = false;           // the rollouts are not whole then
    double generate_seconds = 0, reward_seconds = 0;
};

// Errors: a prompt that leaves no room for an answer, an answer that ended with an error.
Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request);

}  // namespace nibble
