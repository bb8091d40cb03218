// Rollouts: the engine's answers to prompts of a task, with the log-probability of every token as the engine computed
// it, and their rewards. An answer has one or more turns. Between two turns the environment inserts tokens that the
// model reads but does not learn.
#pragma once

#include "engine/answer_all.h"
#include "parallel/rank_group.h"
#include "rl/environment.h"
#include "rl/rank_work.h"
#include "rl/tasks.h"

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
    std::string question, expected;  // given to the judge of the answer
    std::string where;               // copy of TaskQuestion::where
    // Set by RolloutPool:
    uint64_t number = 0;  // in the task
    int64_t begun = 0;    // step in which its answers began

    // For messages: its file and line, or "prompt 17".
    std::string name() const { return where.empty() ? fmt::format("prompt {}", number) : where; }
};

// One answer, from generation to the loss.
struct Rollout {
    size_t prompt = 0;  // index of its prompt
    // The tokens after the prompt: those that the model wrote, including end tokens, and those that it read between
    // turns. The last token is written. Empty: the prompt left no room for an answer.
    std::vector<int32_t> tokens;
    std::vector<float> generated;      // log-probability of each written token, 0 for read ones
    std::vector<uint8_t> written;      // per token: 1 by the model, 0 by the environment
    std::vector<int64_t> steps;        // per token: the step whose weights gave the log-probability
    bool whole = false;                // judged, and no further turn follows
    int64_t turns = 1;                 // turns that began
    size_t turn_begin = 0;             // first token of the last turn
    std::string text;                  // text of the last turn
    bool cut = false;                  // the last turn ended at its limit, or a next turn does not fit
    std::vector<int32_t> observation;  // tokens that the model would read next; empty: the environment is done
    Json state;                        // state of the environment after the last turn
    std::string answer;            // final answer in the text; equal answers are votes for the same answer in cons@k
    std::optional<double> reward;  // sum over turns; absent: judging failed, and the answer is excluded
    std::string failure;           // reason why judging failed
    double shaped = 0, advantage = 0;  // shaped: reward after scaling and shaping
    std::vector<double> advantages;    // per token, if the KL term is in the reward
    bool masked = false;               // excluded from the loss because training's log-probabilities differ too much

    int64_t length() const { return std::ranges::count(written, 1); }  // tokens that the model wrote
};

inline constexpr uint64_t validation_prompts_from = uint64_t{1} << 40;  // training's numbers are below

// A source of prompts and a judge of answers.
class RolloutTask {
public:
    virtual ~RolloutTask() = default;
    // Returns the prompt of a number. Equal numbers give equal prompts.
    virtual Result<RolloutPrompt> prompt(uint64_t number) = 0;
    // Judges the last turn of each rollout: adds to its reward or sets its failure. If the answer continues, it sets
    // `observation` and `state`.
    virtual Status judge(const std::vector<RolloutPrompt>& prompts, std::span<Rollout* const> rollouts) = 0;
};

// Options of a task with questions in text, judged by a rule or an environment.
struct QuestionTaskOptions {
    std::function<Result<TaskQuestion>(uint64_t number)> question;
    // Used without an environment. It may be called from several threads. Error: this answer cannot be judged.
    std::function<Result<double>(const TaskQuestion& question, std::string_view text)> reward;
    // Extracts the final answer of a text; null: the whole text is the answer.
    std::function<std::string(std::string_view text)> answer;
    std::string prompt = "{}";  // {} is replaced with the question
    std::function<Result<std::vector<int32_t>>(const std::string& prompt)> encode;
    // Returns the tokens to append after a turn that ended with token `last`, so that the model reads the observation
    // and continues. Required if the environment has several turns.
    std::function<Result<std::vector<int32_t>>(const std::string& observation, int32_t last)> encode_observation;
    std::unique_ptr<Environment> environment;  // may be null
    ThreadPool* pool = nullptr;                // judges answers in parallel; null: serially
    const std::atomic<bool>* stop = nullptr;   // if true, no further answer is judged
};
// Replaces the first {} of `text` with the question.
std::string task_prompt(std::string text, std::string_view question);
std::unique_ptr<RolloutTask> question_task(QuestionTaskOptions options);

struct RolloutRequest {
    uint64_t first_prompt = 0;
    int64_t prompts = 1, answers = 1;  // answers per prompt
    int64_t length = 512;              // tokens of a prompt and its answer, over all turns
    int64_t most_tokens = 0;           // per turn; 0: limited by `length` only
    int64_t round_tokens = 0;          // maximum new tokens per answer and round; 0: a whole turn
    int64_t step = 0;                  // the training step
    int64_t most_turns = 1;
    SamplingParams sampling;  // temperature and filters; `seed` below replaces its seed
    uint64_t seed = 0;        // answer a of prompt number n draws from sequence n * answers + a
    std::vector<int32_t> end_tokens;
    std::vector<std::string> stop_texts;
    // Predicts the tokens of an answer to a prompt, to distribute prompts to ranks; null: no prediction.
    std::function<double(std::span<const int32_t> prompt)> expected_length;
    // identifies the version of the weights, so that keys and values of other versions are not reused
    std::string cache_salt;
    const std::atomic<bool>* stop = nullptr;
};

struct RolloutBatch {
    std::vector<RolloutPrompt> prompts;
    std::vector<Rollout> rollouts;                    // the same number per prompt, in order
    bool stopped = false;                             // stopped by request: the rollouts are incomplete
    double generate_seconds = 0, reward_seconds = 0;  // with several ranks: those of the slowest
    std::vector<RankWork> ranks;                      // empty: a single process
};

// Moves the chosen prompts (one flag each) and their answers to a new batch, in order.
RolloutBatch take_prompts(RolloutBatch& from, std::span<const uint8_t> chosen);

}  // namespace nibble
