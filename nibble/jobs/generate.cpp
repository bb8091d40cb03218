#include "nibble/generate.h"

#include "base/mapped_file.h"
#include "chat/prompt_tokens.h"
#include "engine/answer_all.h"
#include "engine/answer_constraint.h"
#include "grammar/grammar.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"
#include "jobs/sampling.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {
namespace {

Json conversation_of(const GeneratePrompt& prompt) {
    Json messages = Json::array();
    if (!prompt.system.empty()) messages.push_back({{"role", "system"}, {"content", prompt.system}});
    messages.push_back({{"role", "user"}, {"content", prompt.text}});
    return messages;
}

Result<std::vector<int32_t>> encode_one(const GeneratePrompt& prompt, const ModelText& text, bool parse_special) {
    if (!prompt.messages.empty()) {
        NIBBLE_TRY(const Json messages, parse_json(prompt.messages));
        return encode_chat(text, messages, parse_special);
    }
    if (prompt.chat) return encode_chat(text, conversation_of(prompt), parse_special);
    return encode_prompt(text, prompt.text);
}

// Returns the grammar; null: answers are unconstrained. Errors name the option.
Result<std::shared_ptr<const Grammar>> grammar_of(const AnswerForm& form) {
    if (!form.json_schema.empty()) {
        NIBBLE_TRY(const Json schema, read_json_file(form.json_schema));
        return Grammar::from_json_schema(schema, answer_schema).within(form.json_schema);
    }
    if (form.json_object) return Grammar::json_object();
    if (!form.regex.empty()) return Grammar::from_regex(form.regex).within("--regex");
    if (!form.choices.empty()) return Grammar::from_choices(form.choices).within("--choice");
    if (!form.grammar.empty()) {
        NIBBLE_TRY(const std::string text, read_text_file(form.grammar));
        return Grammar::from_ebnf(text).within(form.grammar);
    }
    return std::shared_ptr<const Grammar>();
}

GeneratedAnswer finished_answer(const WholeAnswer& answer, size_t prompt_tokens) {
    GeneratedAnswer out{.text = answer.text,
                        .finish_reason = std::string(finish_name(answer.finish)),
                        .prompt_tokens = static_cast<int64_t>(prompt_tokens)};
    for (const GeneratedToken& t : answer.tokens) {
        out.ids.push_back(t.id);
        out.logprobs.push_back(t.logprob);
    }
    return out;
}

Result<GenerationReport> generate_job(const GenerateOptions& options, const GenerateHooks& hooks) {
    if (options.prompts.empty()) return fail(ErrorKind::usage, "no prompt to answer");
    NIBBLE_TRY(const ModelText text, open_model_text(options.model).as(ErrorKind::checkpoint));
    std::vector<std::vector<int32_t>> prompts;
    for (const GeneratePrompt& prompt : options.prompts) {
        NIBBLE_TRY(prompts.emplace_back(),
                   encode_one(prompt, text, options.parse_special).within(prompt.where).as(ErrorKind::usage));
    }
    NIBBLE_TRY(const auto grammar, grammar_of(options.form).as(ErrorKind::usage));
    NIBBLE_TRY(const Speculation speculation, parse_speculation(options.cache.speculate).within("--speculate"));
    ThreadPool pool(options.engine.threads);
    NIBBLE_TRY(const LoadedModel loaded,
               LoadedModel::open(options.model, options.engine, pool, hooks, speculation.predicts()));
    NIBBLE_TRY(Request like, sampled_request(options.sampling, loaded, text));
    const ModelConfig& model = loaded.model->config();
    if (grammar) {
        NIBBLE_TRY(const auto vocabulary, GrammarVocabulary::of(text.tokenizer, like.eos, size_t(model.vocab)));
        const auto tokens = std::make_shared<const GrammarTokens>(grammar, vocabulary);
        like.constraint = token_constraint(AnswerConstraint({}, tokens, vocabulary));
    }
    std::vector<Request> requests;
    int64_t longest = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
        NIBBLE_CHECK(
            check_prompt(prompts[i], model.vocab, model.context).within(options.prompts[i].where).as(ErrorKind::usage));
        Request& request = requests.emplace_back(like);
        request.prompt = prompts[i];
        request.sequence = i;
        longest = std::max(longest, std::ssize(prompts[i]) + request.max_tokens);
    }
    NIBBLE_TRY(EngineOptions engine, engine_options(options.cache, std::min(options.batch, std::ssize(requests))));
    engine.context = longest;
    engine.queue = std::ssize(requests);
    NIBBLE_TRY(const auto running, Engine::create(loaded.model, text.tokenizer, engine));

    GenerationReport report;
    std::vector<WholeAnswer> answers;
    const auto take_finished = [&](size_t) {  // reports answers in the order of the prompts
        for (size_t i = report.answers.size(); i < answers.size() && answers[i].finish != FinishReason::none; ++i) {
            report.answers.push_back(finished_answer(answers[i], prompts[i].size()));
            if (hooks.on_answer) hooks.on_answer(i, report.answers.back());
        }
    };
    const Status done =
        answer_all(*running, std::move(requests),
                   {.on_text = hooks.on_text, .on_finish = take_finished, .stop = hooks.stop_requested}, answers);
    take_finished(0);
    NIBBLE_CHECK(done);
    const EngineStats stats = running->stats();
    report.prompt_seconds = stats.prompt_step_seconds;
    report.answer_seconds = stats.answer_step_seconds;
    report.prompt_tokens = stats.prompt_tokens - stats.prefix_hits;
    report.answer_tokens = stats.generated_tokens;
    return report;
}

}  // namespace

Result<GenerationReport> generate(const GenerateOptions& options, const GenerateHooks& hooks) {
    return as_job([&] { return generate_job(options, hooks).as(ErrorKind::checkpoint); });
}

}  // namespace nibble
