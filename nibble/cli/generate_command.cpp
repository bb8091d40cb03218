// `nibble generate MODEL [PROMPT]`: what a model writes after a prompt, or after each of many.
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "cli/constraint_flags.h"
#include "cli/engine.h"
#include "cli/input_text.h"
#include "cli/terminal.h"
#include "serve/answer_all.h"
#include "serve/answer_constraint.h"

#include <fmt/format.h>
#include <unistd.h>

namespace nibble {
namespace {

struct GenerateConfig {
    std::string path, prompt, prompt_file, jsonl, system;
    bool has_prompt = false, chat = false, json = false, parse_special = false;
    int64_t batch = 16;
    EngineFlags engine;
    SamplingSettings sampling;
    CacheSettings cache;
    ConstraintFlags constraint;
};

Result<std::string> prompt_text(const GenerateConfig& config) {
    if (config.has_prompt) return config.prompt;
    if (config.prompt_file.empty()) return read_standard_input();
    NIBBLE_TRY(const MappedFile file, MappedFile::open(config.prompt_file));
    if (file.bytes().empty()) return fail("{}: is empty", config.prompt_file);
    const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    return std::string(without_byte_order_mark(content));
}

Json conversation(const std::string& system, const std::string& user) {
    Json messages = Json::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    messages.push_back({{"role", "user"}, {"content", user}});
    return messages;
}

// Every prompt with the place that errors name.
struct Prompt {
    std::string where;
    std::vector<int32_t> ids;
};

Result<std::vector<int32_t>> encode(const GenerateConfig& config, const ModelText& text, const std::string& prompt) {
    if (!config.chat) return encode_prompt(text, prompt);
    return encode_chat(text, conversation(config.system, prompt), config.parse_special);
}

// A key that nobody reads is a wish that would go unheard.
Result<std::vector<int32_t>> encode_line(const GenerateConfig& config, const ModelText& text, const Json& line) {
    if (!line.is_object()) return fail("expected an object with 'prompt' or 'messages'");
    const auto prompt = line.find("prompt"), messages = line.find("messages");
    for (const auto& [key, value] : line.items())
        if (key != "prompt" && key != "messages") return fail("unknown key '{}'; known: prompt, messages", key);
    if (prompt != line.end() && messages != line.end()) return fail("give one of 'prompt' and 'messages'");
    if (messages != line.end()) {
        if (!config.system.empty()) return fail("--system goes before a 'prompt'; 'messages' hold their own");
        return encode_chat(text, *messages, config.parse_special);
    }
    if (prompt == line.end() || !prompt->is_string()) return fail("neither 'prompt', a string, nor 'messages'");
    return encode(config, text, prompt->get<std::string>());
}

Result<std::vector<Prompt>> read_lines(const GenerateConfig& config, const ModelText& text) {
    std::vector<Prompt> prompts;
    size_t number = 0;
    NIBBLE_CHECK(for_each_line(config.jsonl, [&](std::string_view line) -> Status {
        const std::string where = fmt::format("{}: line {}", config.jsonl, ++number);
        if (line.find_first_not_of(" \t\r") == std::string::npos) return Ok{};
        NIBBLE_TRY(const Json json, parse_json(line));
        NIBBLE_TRY(auto ids, encode_line(config, text, json));
        prompts.push_back({where, std::move(ids)});
        return Ok{};
    }));
    if (prompts.empty()) return fail("{}: has no prompts", config.jsonl);
    return prompts;
}

Result<std::vector<Prompt>> read_prompts(const GenerateConfig& config, const ModelText& text) {
    if (!config.jsonl.empty()) return read_lines(config, text);
    NIBBLE_TRY(const std::string prompt, prompt_text(config));
    const std::string where = config.prompt_file.empty() ? "prompt" : config.prompt_file;
    NIBBLE_TRY(auto ids, encode(config, text, prompt).within(where));
    return std::vector<Prompt>{{where, std::move(ids)}};
}

Json result_json(const WholeAnswer& answer, size_t prompt_tokens) {
    std::vector<int32_t> ids;
    std::vector<float> log_probs;
    for (const GeneratedToken& t : answer.tokens) {
        ids.push_back(t.id);
        log_probs.push_back(t.logprob);
    }
    return {{"text", answer.text},
            {"ids", ids},
            {"logprobs", log_probs},
            {"finish_reason", finish_name(answer.finish)},
            {"prompt_tokens", prompt_tokens}};
}

double per_second(int64_t tokens, double seconds) { return seconds > 0 ? double(tokens) / seconds : 0; }

// Seconds of steps with rows of prompts, and of all others; their tokens.
struct Timing {
    double prompt_seconds = 0, seconds = 0;
    int64_t prompt_tokens = 0, tokens = 0;
};

Json timing_json(const Timing& t) {
    return {{"prompt_seconds", t.prompt_seconds},
            {"prompt_tokens_per_second", per_second(t.prompt_tokens, t.prompt_seconds)},
            {"generate_seconds", t.seconds},
            {"tokens_per_second", per_second(t.tokens, t.seconds)}};
}

std::string to_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Result<Outcome> run_generate(const GenerateConfig& config) {
    NIBBLE_TRY(const ModelText text, open_model_text(config.path));
    NIBBLE_TRY(const std::vector<Prompt> prompts, read_prompts(config, text));
    NIBBLE_TRY(const auto grammar, constraint_grammar(config.constraint));
    ThreadPool pool(config.engine.threads);
    NIBBLE_TRY(const Speculation guess, parse_speculation(config.cache.speculate));
    NIBBLE_TRY(const LoadedModel engine, LoadedModel::open(config.path, config.engine, pool,
                                                           printing_hooks(config.engine.quiet), guess.predicts()));
    NIBBLE_TRY(Request like, sampled_request(config.sampling, engine, text));
    const ModelConfig& model = engine.model->config();
    if (grammar) {
        NIBBLE_TRY(const auto vocabulary, GrammarVocabulary::of(text.tokenizer, like.eos, size_t(model.vocab)));
        const auto tokens = std::make_shared<const GrammarTokens>(grammar, vocabulary);
        like.constraint = token_constraint(AnswerConstraint({}, tokens, vocabulary));
    }
    std::vector<Request> requests;
    int64_t longest = 0;
    for (const Prompt& prompt : prompts) {
        NIBBLE_CHECK(check_prompt(prompt.ids, model.vocab, model.context).within(prompt.where));
        Request& request = requests.emplace_back(like);
        request.prompt = prompt.ids;
        request.sequence = requests.size() - 1;
        longest = std::max(longest, std::ssize(prompt.ids) + request.max_tokens);
    }
    NIBBLE_TRY(EngineOptions options, engine_options(config.cache, std::min(config.batch, std::ssize(requests))));
    options.context = longest;
    options.queue = std::ssize(requests);
    NIBBLE_TRY(const auto running, Engine::create(engine.model, text.tokenizer, options));

    const bool lines = !config.jsonl.empty();
    Console console(true);
    const JobHooks hooks = console.hooks();
    std::vector<WholeAnswer> answers;
    AnswerHooks on{.stop = hooks.stop_requested};
    size_t printed = 0;  // lines come in the order of the prompts
    const auto print_finished = [&](size_t) {
        for (; printed < answers.size() && answers[printed].finish != FinishReason::none; ++printed)
            std::fputs(to_line(result_json(answers[printed], prompts[printed].ids.size())).c_str(), stdout);
        std::fflush(stdout);
    };
    if (lines)
        on.on_finish = print_finished;
    else if (!config.json)
        on.on_text = [](size_t, std::string_view piece) {
            std::fwrite(piece.data(), 1, piece.size(), stdout);
            std::fflush(stdout);
        };
    const Status done = answer_all(*running, std::move(requests), on, answers);
    if (lines) print_finished(0);
    NIBBLE_CHECK(done);
    const EngineStats stats = running->stats();
    const Timing timing{stats.prompt_step_seconds, stats.answer_step_seconds, stats.prompt_tokens - stats.prefix_hits,
                        stats.generated_tokens};
    if (config.json && !lines) {
        Json json = result_json(answers[0], prompts[0].ids.size());
        json["timing"] = timing_json(timing);
        std::fputs(to_line(json).c_str(), stdout);
    } else if (!lines) {
        std::fputs("\n", stdout);
    }
    if (::isatty(STDERR_FILENO) && !config.json && !config.engine.quiet)
        say(fmt::format("prompt {} tokens, {:.1f}/s; answer {} tokens, {:.1f}/s", timing.prompt_tokens,
                        per_second(timing.prompt_tokens, timing.prompt_seconds), timing.tokens,
                        per_second(timing.tokens, timing.seconds)));
    return Outcome{.findings = answers.back().finish == FinishReason::cancelled};
}

}  // namespace

void add_generate(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<GenerateConfig>();
    CLI::App* command = app.add_subcommand("generate", "what a model writes after a prompt");
    command->add_option("model", config->path, "a checkpoint: folder or .gguf file")->required();
    CLI::Option* prompt = command->add_option("prompt", config->prompt, "the text; standard input if there is none");
    CLI::Option* file =
        command->add_option("--prompt-file", config->prompt_file, "a file with the text")->excludes(prompt);
    command
        ->add_option("--jsonl", config->jsonl,
                     "lines {\"prompt\"} or {\"messages\"}; prints a line of JSON for each, in order")
        ->excludes(prompt)
        ->excludes(file);
    command->add_flag("--chat", config->chat, "the prompt is a user's message: the chat template is applied");
    command->add_option("--system", config->system, "a system message before it")->needs("--chat");
    command->add_option("--batch", config->batch, "answers that run together; the bits do not depend on it")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command->add_flag("--json", config->json, "ids, text, log-probabilities, finish reason and timing");
    command->add_flag("--parse-special", config->parse_special,
                      "control tokens count as such in messages, too, not only in what the chat template wrote");
    add_constraint_flags(*command, config->constraint);
    add_sampling_flags(*command, config->sampling);
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine);
    command->footer("Example:\n  nibble generate SmolLM2-135M --chat 'Why is the sky blue?' --seed 7");
    command->callback([config, prompt, &run] {
        config->has_prompt = prompt->count() > 0;
        run = [config] { return run_generate(*config); };
    });
}

}  // namespace nibble
