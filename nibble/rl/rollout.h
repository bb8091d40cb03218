// Rollouts: answers of the serving engine to prompts of a task, with the log-probability of every token as the engine
// computed it, and their rewards. An answer has one turn or several: between them an environment says something, whose
// tokens the model reads and does not learn.
#pragma once

#include "parallel/rank_group.h"
#include "rl/environment.h"
#include "rl/rank_deal.h"
#include "rl/tasks.h"
#include "serve/answer_all.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct RolloutPrompt {
    std::vector<int32_t> tokens;
    std::string question, expected;  // for whoever judges the answer
    std::string where;               // TaskQuestion::where
    // Set by the pool:
    uint64_t number = 0;  // of the task
    int64_t begun = 0;    // step in which its answers began
};

// One answer, from the engine to the loss.
struct Rollout {
    size_t prompt = 0;  // index of its prompt
    // Behind the prompt: what the model wrote, end tokens included, and between its turns what it read. The last one is
    // written. Empty: the prompt left no room.
    std::vector<int32_t> tokens;
    std::vector<float> generated;      // log-probability of each written one, 0 of each read one
    std::vector<uint8_t> written;      // of each: 1 by the model, 0 by the environment
    std::vector<int64_t> steps;        // of each: the step whose weights the log-probability comes from
    bool whole = false;                // judged, and nothing follows
    int64_t turns = 1;                 // that began
    size_t turn_begin = 0;             // first token of the last turn
    std::string text;                  // of the last turn
    bool cut = false;                  // the last turn is at its limit, without an end, or no next one fits
    std::vector<int32_t> observation;  // what the model would read next; empty: the environment has done
    Json state;                        // the environment's, behind the last turn
    std::string answer;                // what the text says in the end: equal answers are one vote of cons@k
    std::optional<double> reward;      // sum of the turns; none: it could not be judged, and counts nowhere
    std::string failure;               // why
    double shaped = 0, advantage = 0;  // reward after scaling and shaping
    std::vector<double> advantages;    // of each token, where the KL term is in the reward
    bool masked = false;               // left out of the loss: training's log-probabilities are too far away

    int64_t length() const { return std::ranges::count(written, 1); }  // tokens that the model wrote
};

inline constexpr uint64_t validation_prompts_from = uint64_t{1} << 40;  // training's numbers stay below

// What the model is asked, and what its answers are worth.
class RolloutTask {
public:
    virtual ~RolloutTask() = default;
    // The prompt of this number: always the same one.
    virtual Result<RolloutPrompt> prompt(uint64_t number) = 0;
    // Judges the last turn of each: adds to the reward or sets the failure. Where the answer is to go on, sets
    // `observation` and `state`.
    virtual Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) = 0;
};

// Questions in text, judged by a rule or by an environment.
struct QuestionTaskOptions {
    std::function<Result<TaskQuestion>(uint64_t number)> question;
    // Where there is no environment; called from several threads. Error: this answer cannot be judged.
    std::function<Result<double>(const TaskQuestion& question, std::string_view text)> reward;
    // What a text says in the end; null: the whole text.
    std::function<std::string(std::string_view text)> answer;
    std::string prompt = "{}";  // the question takes the place of {}
    std::function<Result<std::vector<int32_t>>(const std::string& prompt)> encode;
    // What follows a turn whose last token is `last`, so that the model reads the observation and writes again. Needed
    // where the environment has several turns.
    std::function<Result<std::vector<int32_t>>(const std::string& observation, int32_t last)> encode_observation;
    std::unique_ptr<Environment> environment;  // may be null
    ThreadPool* pool = nullptr;                // that judges answers side by side; null: one after the other
    const std::atomic<bool>* stop = nullptr;   // true: no further answer is judged
};
// `text` with the question in the place of its first {}.
std::string task_prompt(std::string text, std::string_view question);
std::unique_ptr<RolloutTask> question_task(QuestionTaskOptions options);

struct RolloutRequest {
    uint64_t first_prompt = 0;
    int64_t prompts = 1, answers = 1;  // of each prompt
    int64_t length = 512;              // tokens of a prompt and its answer, all turns
    int64_t most_tokens = 0;           // of a turn; 0: what the length leaves
    int64_t round_tokens = 0;          // that an answer gets in a round at most; 0: a whole turn
    int64_t step = 0;                  // of training
    int64_t most_turns = 1;
    SamplingParams sampling;  // temperature and filters; the seed is the one below
    uint64_t seed = 0;        // answer a of prompt number n draws from sequence n * answers + a
    std::vector<int32_t> end_tokens;
    std::vector<std::string> stop_texts;
    // Tokens of an answer to a prompt, for the deal to ranks; null: nothing is known.
    std::function<double(std::span<const int32_t> prompt)> expected_length;
    std::string cache_salt;  // of the weights' version: no other version's keys and values are read
    const std::atomic<bool>* stop = nullptr;
};

struct RolloutBatch {
    std::vector<RolloutPrompt> prompts;
    std::vector<Rollout> rollouts;                    // equally many of each prompt, in order
    bool stopped = false;                             // the rollouts are not whole then
    double generate_seconds = 0, reward_seconds = 0;  // of several ranks: those of the slowest
    std::vector<RankWork> ranks;                      // empty: one process
};

// Moves the prompts that are chosen (one flag each), with their answers, into a batch of their own, in order.
RolloutBatch take_prompts(RolloutBatch& from, std::span<const uint8_t> chosen);

}  // namespace nibble
