// `nibble generate MODEL [PROMPT]`: what a model writes after a prompt, or after each of many.
#include "base/mapped_file.h"
#include "cli/engine.h"
#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>

namespace nibble {
namespace {

struct GenerateConfig {
    std::string path, prompt, prompt_file, jsonl, system;
    bool has_prompt = false, chat = false, json = false;
    int64_t batch = 16;
    EngineFlags engine;
    SamplingFlags sampling;
};

Result<std::string> prompt_text(const GenerateConfig& config) {
    if (config.has_prompt) return config.prompt;
    if (config.prompt_file.empty()) return std::string(std::istreambuf_iterator<char>(std::cin), {});
    NIBBLE_TRY(const MappedFile file, MappedFile::open(config.prompt_file));
    if (file.bytes().empty()) return fail("{}: is empty", config.prompt_file);
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
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
    return encode_chat(text, conversation(config.system, prompt));
}

Result<std::vector<Prompt>> read_lines(const GenerateConfig& config, const ModelText& text) {
    std::ifstream in(config.jsonl);
    if (!in) return fail("{}: cannot be opened", config.jsonl);
    std::vector<Prompt> prompts;
    size_t number = 0;
    for (std::string line; std::getline(in, line);) {
        const std::string where = fmt::format("{}: line {}", config.jsonl, ++number);
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        NIBBLE_TRY(const Json json, parse_json(line).within(where));
        const auto prompt = json.find("prompt"), messages = json.find("messages");
        if (messages != json.end()) {
            NIBBLE_TRY(auto ids, encode_chat(text, *messages).within(where));
            prompts.push_back({where, std::move(ids)});
        } else if (prompt != json.end() && prompt->is_string()) {
            NIBBLE_TRY(auto ids, encode(config, text, prompt->get<std::string>()).within(where));
            prompts.push_back({where, std::move(ids)});
        } else {
            return fail("{}: neither 'prompt', a string, nor 'messages'", where);
        }
    }
    if (in.bad()) return fail("{}: cannot be read", config.jsonl);
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

Json result_json(const Generation& g) {
    std::vector<int32_t> ids;
    std::vector<float> log_probs;
    for (const GeneratedToken& t : g.tokens()) {
        ids.push_back(t.id);
        log_probs.push_back(t.logprob);
    }
    return {{"text", g.text()},
            {"ids", ids},
            {"logprobs", log_probs},
            {"finish_reason", finish_name(g.finish())},
            {"prompt_tokens", g.prompt().size()}};
}

double per_second(int64_t tokens, double seconds) { return seconds > 0 ? double(tokens) / seconds : 0; }

Json timing_json(const GenerateStats& s) {
    return {{"prompt_seconds", s.prompt_seconds},
            {"prompt_tokens_per_second", per_second(s.prompt_tokens, s.prompt_seconds)},
            {"generate_seconds", s.generate_seconds},
            {"tokens_per_second", per_second(s.generated_tokens, s.generate_seconds)}};
}

std::string to_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Result<Outcome> run_generate(const GenerateConfig& config) {
    NIBBLE_TRY(const ModelText text, open_model_text(config.path));
    NIBBLE_TRY(const std::vector<Prompt> prompts, read_prompts(config, text));
    ThreadPool pool(config.engine.threads);
    NIBBLE_TRY(const Engine engine, Engine::open(config.path, config.engine, pool));
    NIBBLE_TRY(const GenerationParams params, generation_params(config.sampling, engine, text));
    const ModelConfig& model = engine.model->config();

    std::vector<Generation> answers;
    for (const Prompt& prompt : prompts) {
        NIBBLE_CHECK(check_prompt(prompt.ids, model.vocab, model.context).within(prompt.where));
        answers.emplace_back(text.tokenizer, prompt.ids, params, answers.size(), model.context);
    }
    const bool lines = !config.jsonl.empty();
    Console console(true);
    const JobHooks hooks = console.hooks();
    GenerateOptions options{.batch = config.batch, .stop = hooks.stop_requested};
    size_t printed = 0;  // lines come in the order of the prompts
    const auto print_finished = [&](size_t) {
        for (; printed < answers.size() && answers[printed].finished(); ++printed)
            std::fputs(to_line(result_json(answers[printed])).c_str(), stdout);
        std::fflush(stdout);
    };
    if (lines)
        options.on_finish = print_finished;
    else if (!config.json)
        options.on_text = [](size_t, std::string_view piece) {
            std::fwrite(piece.data(), 1, piece.size(), stdout);
            std::fflush(stdout);
        };
    NIBBLE_TRY(const GenerateStats stats, generate(*engine.model, answers, options));
    if (lines) {
        print_finished(0);
    } else if (config.json) {
        Json json = result_json(answers[0]);
        json["timing"] = timing_json(stats);
        std::fputs(to_line(json).c_str(), stdout);
    } else {
        std::fputs("\n", stdout);
    }
    if (::isatty(STDERR_FILENO) && !config.json)
        fmt::print(stderr, "prompt {} tokens, {:.1f}/s; answer {} tokens, {:.1f}/s\n", stats.prompt_tokens,
                   per_second(stats.prompt_tokens, stats.prompt_seconds), stats.generated_tokens,
                   per_second(stats.generated_tokens, stats.generate_seconds));
    return Outcome{.findings = answers.back().finish() == FinishReason::cancelled};
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
    add_sampling_flags(*command, config->sampling);
    add_engine_flags(*command, config->engine);
    command->footer("Example:\n  nibble generate SmolLM2-135M --chat 'Why is the sky blue?' --seed 7");
    command->callback([config, prompt, &run] {
        config->has_prompt = prompt->count() > 0;
        run = [config] { return run_generate(*config); };
    });
}

}  // namespace nibble
