#include "rl/config_task.h"

#include "chat/prompt_tokens.h"
#include "rl/environment_process.h"

#include <nlohmann/json.hpp>

#include <chrono>

namespace nibble {
namespace {

Result<std::unique_ptr<Environment>> environment_of(const RlTask& task, const std::atomic<bool>* stop,
                                                    JudgeFunction judge) {
    if (task.function.empty() && judge) return fail(ErrorKind::usage, "env.function: must name the caller's function");
    if (!task.function.empty() && !judge)
        return fail(ErrorKind::usage,
                    "env.function: {} is a function of a program that calls nibble as a library, as "
                    "nibble.reinforce(judge=...) in Python; the command needs env.command",
                    task.function);
    if (judge) return function_environment(std::move(judge));
    if (task.command.empty()) return std::unique_ptr<Environment>();
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(task.timeout_seconds * 1000));
    return start_environment(
        {.command = task.command, .processes = static_cast<int>(task.processes), .timeout = timeout, .stop = stop});
}

Result<QuestionFile> read_rows(const RlTask& task, const std::filesystem::path& file) {
    // An environment gets the answer unchanged, so the rule `exact` is used.
    return read_question_file({.file = file,
                               .input_key = task.input_key,
                               .output_key = task.output_key,
                               .rule = task.has_environment() ? AnswerRule::exact : task.reward.rule});
}

QuestionTaskOptions row_questions(std::shared_ptr<const QuestionRows> rows, std::shared_ptr<const AnswerReward> reward,
                                  AnswerRule rule) {
    return {.question = [rows](uint64_t number) { return rows->question(number); },
            .reward = [reward](const TaskQuestion& q, std::string_view text) { return (*reward)(text, q.answer); },
            .answer = [rule](std::string_view text) { return given_answer(rule, text); }};
}

QuestionTaskOptions generated_questions(const RlConfig& c) {
    return {.question = [kind = c.task.kind, difficulty = c.task.difficulty,
                         seed = c.seed](uint64_t number) { return task_question(kind, difficulty, seed, number); },
            .reward = [kind = c.task.kind](const TaskQuestion& q, std::string_view text) -> Result<double> {
                return task_reward(kind, q, text);
            },
            .answer = [kind = c.task.kind](std::string_view text) { return task_answer(kind, text); }};
}

Status check_chat(const RlConfig& c, const ModelText& text) {
    if (!c.task.chat || text.chat) return Ok{};
    return fail("{}: has no chat template; data.chat: false does not need one", c.model.string());
}

auto encoder_of(const RlConfig& c, const ModelText& text) {
    return [&text, chat = c.task.chat](const std::string& prompt) {
        if (!chat) return encode_prompt(text, prompt);
        return encode_chat(text, Json::array({{{"role", "user"}, {"content", prompt}}}));
    };
}

}  // namespace

Result<std::shared_ptr<const QuestionRows>> open_question_rows(const RlConfig& c, const ModelText& text) {
    if (c.task.train.empty()) return std::shared_ptr<const QuestionRows>();
    NIBBLE_TRY(QuestionFile train, read_rows(c.task, c.task.train));
    std::optional<QuestionFile> validation;
    if (!c.task.validation.empty()) {
        NIBBLE_TRY(validation, read_rows(c.task, c.task.validation));
    }
    auto rows = std::make_shared<const QuestionRows>(std::move(train), std::move(validation), c.seed);
    NIBBLE_CHECK(check_chat(c, text));
    const auto encode = encoder_of(c, text);
    NIBBLE_CHECK(rows->check_room(
        [&](const TaskQuestion& q) -> Result<int64_t> {
            NIBBLE_TRY(const auto tokens, encode(task_prompt(c.task.prompt, q.prompt)).within(q.where));
            return std::ssize(tokens);
        },
        c.length));
    return rows;
}

Result<std::unique_ptr<RolloutTask>> open_config_task(const RlConfig& c, const ModelText& text,
                                                      std::shared_ptr<const QuestionRows> rows, ThreadPool& pool,
                                                      const std::atomic<bool>* stop, JudgeFunction judge) {
    NIBBLE_CHECK(check_chat(c, text));
    std::shared_ptr<const AnswerReward> reward;  // null: an environment judges
    if (rows && !c.task.has_environment()) {
        NIBBLE_TRY(AnswerReward rule, AnswerReward::create(c.task.reward).within("data.reward"));
        reward = std::make_shared<const AnswerReward>(std::move(rule));
    }
    QuestionTaskOptions options =
        rows ? row_questions(std::move(rows), std::move(reward), c.task.reward.rule) : generated_questions(c);
    options.pool = &pool;
    options.stop = stop;
    NIBBLE_TRY(options.environment, environment_of(c.task, stop, std::move(judge)));
    options.prompt = c.task.prompt;
    options.encode = encoder_of(c, text);
    options.encode_observation = [&text, chat = c.task.chat](const std::string& observation, int32_t last) {
        return chat ? encode_chat_reply(text, observation, last) : encode_text(text, observation);
    };
    return question_task(std::move(options));
}

}  // namespace nibble
