#include "eval/generation_tasks.h"

#include "base/fields.h"
#include "eval/answers.h"

namespace nibble {
namespace {

Result<std::vector<int32_t>> prompt_of(const Subject& subject, std::span<const int32_t> prefix, std::string_view text,
                                       int64_t max_tokens) {
    NIBBLE_TRY(const auto tokens, subject.encode(text));
    std::vector<int32_t> prompt(prefix.begin(), prefix.end());
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    const int64_t context = subject.model->config().context;
    if (std::ssize(prompt) + max_tokens > context)
        return fail("a prompt of {} tokens and an answer of {} do not fit the model's context of {}", prompt.size(),
                    max_tokens, context);
    return prompt;
}

Result<std::vector<TextAnswer>> answers(const Subject& subject, std::span<const std::vector<int32_t>> prompts,
                                        int64_t max_tokens, std::vector<std::string> stop) {
    return subject.generate({{prompts.begin(), prompts.end()}, max_tokens, std::move(stop)});
}

constexpr int64_t gsm8k_tokens = 256, humaneval_tokens = 512;

}  // namespace

Json Gsm8kTask::settings() const {
    return {{"file", file_.name}, {"hash", file_.hash}, {"items", file_.lines.size()}, {"shots", shots_}};
}

Status Gsm8kTask::prepare(const Subject& subject) {
    prompts_.clear();
    answers_.clear();
    if (std::ssize(file_.lines) <= shots_)
        return fail("{}: {} examples leave no question of {}", file_.name, shots_, file_.lines.size());
    NIBBLE_TRY(const auto prefix, subject.prefix());
    std::string examples;
    for (size_t i = 0; i < file_.lines.size(); ++i) {
        const std::string where = fmt::format("{}: item {}", file_.name, i);
        NIBBLE_TRY(const std::string question, text_field(file_.lines[i], "question").within(where));
        NIBBLE_TRY(std::string answer, text_field(file_.lines[i], "answer").within(where));
        const std::string asked = fmt::format("Question: {}\nAnswer:", question);
        if (static_cast<int64_t>(i) < shots_) {
            examples += fmt::format("{} {}\n\n", asked, answer);
            continue;
        }
        NIBBLE_TRY(auto prompt, prompt_of(subject, prefix, examples + asked, gsm8k_tokens).within(where));
        prompts_.push_back(std::move(prompt));
        answers_.push_back(gsm8k_normalized(answer));
    }
    return Ok{};
}

Result<std::vector<Json>> Gsm8kTask::run(const Subject& subject, int64_t begin, int64_t end) {
    NIBBLE_TRY(const auto texts, answers(subject, std::span(prompts_).subspan(size_t(begin), size_t(end - begin)),
                                         gsm8k_tokens, {"Question:", "</s>", "<|im_end|>"}));
    std::vector<Json> results;
    for (size_t i = 0; i < texts.size(); ++i) {
        const std::string& right = answers_[size_t(begin) + i];
        const auto matches = [&](const std::optional<std::string>& found) {
            return found && gsm8k_normalized(*found) == right;
        };
        results.push_back({{"strict", matches(gsm8k_strict(texts[i].text))},
                           {"flexible", matches(gsm8k_flexible(texts[i].text))},
                           {"text", texts[i].text}});
    }
    return results;
}

Result<TaskResult> Gsm8kTask::summarize(std::span<const Json> results) const {
    std::vector<double> strict, flexible;
    for (const Json& json : results) {
        bool s = false, f = false;
        Fields fields(json);
        NIBBLE_CHECK(fields.need("strict", s));
        NIBBLE_CHECK(fields.need("flexible", f));
        strict.push_back(s);
        flexible.push_back(f);
    }
    TaskResult result{name(), std::ssize(results), {{"strict match", share(strict), Metric::Kind::share, true}}};
    result.metrics.push_back({"flexible match", share(flexible), Metric::Kind::share, true});
    result.details = settings();
    return result;
}

Status HumanEvalTask::prepare(const Subject& subject) {
    prompts_.clear();
    ids_.clear();
    NIBBLE_TRY(const auto prefix, subject.prefix());
    for (size_t i = 0; i < file_.lines.size(); ++i) {
        const std::string where = fmt::format("{}: item {}", file_.name, i);
        NIBBLE_TRY(std::string id, text_field(file_.lines[i], "task_id").within(where));
        NIBBLE_TRY(const std::string text, text_field(file_.lines[i], "prompt").within(where));
        NIBBLE_TRY(auto prompt, prompt_of(subject, prefix, text, humaneval_tokens).within(where));
        prompts_.push_back(std::move(prompt));
        ids_.push_back(std::move(id));
    }
    return Ok{};
}

Result<std::vector<Json>> HumanEvalTask::run(const Subject& subject, int64_t begin, int64_t end) {
    NIBBLE_TRY(const auto texts, answers(subject, std::span(prompts_).subspan(size_t(begin), size_t(end - begin)),
                                         humaneval_tokens, {"\nclass", "\ndef", "\n#", "\nif", "\nprint"}));
    std::vector<Json> results;
    for (size_t i = 0; i < texts.size(); ++i)
        results.push_back({{"task_id", ids_[size_t(begin) + i]},
                           {"completion", function_body(texts[i].text)},
                           {"stopped", texts[i].stopped}});
    return results;
}

Result<TaskResult> HumanEvalTask::summarize(std::span<const Json> results) const {
    std::vector<double> stopped;
    Json samples = Json::array();
    for (const Json& json : results) {
        bool s = false;
        std::string id, completion;
        Fields fields(json);
        NIBBLE_CHECK(fields.need("stopped", s));
        NIBBLE_CHECK(fields.need("task_id", id));
        NIBBLE_CHECK(fields.need("completion", completion));
        stopped.push_back(s);
        samples.push_back({{"task_id", std::move(id)}, {"completion", std::move(completion)}});
    }
    TaskResult result{name(), std::ssize(results), {{"completions that end", share(stopped), Metric::Kind::share}}};
    result.details = settings();
    result.details["samples"] = std::move(samples);
    return result;
}

}  // namespace nibble
