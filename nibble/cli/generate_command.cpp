// `nibble generate MODEL [PROMPT]`: generates an answer to a prompt, or to each of many.
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "cli/constraint_flags.h"
#include "cli/engine.h"
#include "cli/terminal.h"
#include "io/input_text.h"
#include "nibble/generate.h"

#include <fmt/format.h>
#include <unistd.h>

namespace nibble {
namespace {

struct GenerateConfig : GenerateOptions {
    std::string prompt, prompt_file, jsonl, system;
    bool has_prompt = false, chat = false, json = false, quiet = false;
};

Result<std::string> prompt_text(const GenerateConfig& config) {
    if (config.has_prompt) return config.prompt;
    if (config.prompt_file.empty()) {
        NIBBLE_CHECK(open_tokenizer(config.model));  // a wrong name is rejected before the prompt is typed
        return read_standard_input();
    }
    NIBBLE_TRY(const MappedFile file, MappedFile::open(config.prompt_file));
    if (file.bytes().empty()) return fail("{}: is empty", config.prompt_file);
    const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    return std::string(without_byte_order_mark(content));
}

// Unknown keys are errors, because they would have no effect.
Result<GeneratePrompt> prompt_of_line(const GenerateConfig& config, const Json& line) {
    if (!line.is_object()) return fail("expected an object with 'prompt' or 'messages'");
    const auto prompt = line.find("prompt"), messages = line.find("messages");
    for (const auto& [key, value] : line.items())
        if (key != "prompt" && key != "messages") return fail("unknown key '{}'; known: prompt, messages", key);
    if (prompt != line.end() && messages != line.end()) return fail("give one of 'prompt' and 'messages'");
    if (messages != line.end()) {
        if (!config.system.empty())
            return fail("--system is for 'prompt'; 'messages' contain their own system message");
        return GeneratePrompt{.messages = messages->dump()};
    }
    if (prompt == line.end() || !prompt->is_string()) return fail("needs 'prompt' (a string) or 'messages'");
    return GeneratePrompt{.text = prompt->get<std::string>(), .chat = config.chat, .system = config.system};
}

Result<std::vector<GeneratePrompt>> read_prompt_lines(const GenerateConfig& config) {
    std::vector<GeneratePrompt> prompts;
    size_t number = 0;
    NIBBLE_CHECK(for_each_line(config.jsonl, [&](std::string_view line) -> Status {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) return Ok{};
        NIBBLE_TRY(const Json json, parse_json(line));
        NIBBLE_TRY(prompts.emplace_back(), prompt_of_line(config, json));
        prompts.back().where = fmt::format("{}: line {}", config.jsonl, number);
        return Ok{};
    }));
    if (prompts.empty()) return fail("{}: has no prompts", config.jsonl);
    return prompts;
}

Result<std::vector<GeneratePrompt>> read_prompts(const GenerateConfig& config) {
    if (!config.jsonl.empty()) return read_prompt_lines(config);
    NIBBLE_TRY(std::string text, prompt_text(config));
    return std::vector<GeneratePrompt>{{.text = std::move(text),
                                        .chat = config.chat,
                                        .system = config.system,
                                        .where = config.prompt_file.empty() ? "prompt" : config.prompt_file}};
}

Json answer_json(const GeneratedAnswer& answer) {
    return {{"text", answer.text},
            {"ids", answer.ids},
            {"logprobs", answer.logprobs},
            {"finish_reason", answer.finish_reason},
            {"prompt_tokens", answer.prompt_tokens}};
}

double per_second(int64_t tokens, double seconds) { return seconds > 0 ? double(tokens) / seconds : 0; }

Json timing_json(const GenerationReport& r) {
    return {{"prompt_seconds", r.prompt_seconds},
            {"prompt_tokens_per_second", per_second(r.prompt_tokens, r.prompt_seconds)},
            {"generate_seconds", r.answer_seconds},
            {"tokens_per_second", per_second(r.answer_tokens, r.answer_seconds)}};
}

std::string to_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

void print_now(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

Result<Outcome> run_generate(const GenerateConfig& config) {
    const bool lines = !config.jsonl.empty();
    GenerateOptions options = config;
    Console console(true, config.quiet);
    GenerateHooks hooks{console.hooks()};
    NIBBLE_TRY(const bool done, joined(options.engine, hooks));
    if (done) return Outcome{};
    NIBBLE_TRY(options.prompts, read_prompts(config));
    if (lines)
        hooks.on_answer = [](size_t, const GeneratedAnswer& answer) { print_now(to_line(answer_json(answer))); };
    else if (!config.json)
        hooks.on_text = [](size_t, std::string_view piece) { print_now(piece); };
    NIBBLE_TRY(const GenerationReport report, generate(options, hooks));
    if (config.json && !lines) {
        Json json = answer_json(report.answers[0]);
        json["timing"] = timing_json(report);
        print_now(to_line(json));
    } else if (!lines) {
        print_now("\n");
    }
    if (::isatty(STDERR_FILENO) && !config.json && !config.quiet)
        say(fmt::format("prompt {} tokens, {:.1f}/s; answer {} tokens, {:.1f}/s", report.prompt_tokens,
                        per_second(report.prompt_tokens, report.prompt_seconds), report.answer_tokens,
                        per_second(report.answer_tokens, report.answer_seconds)));
    return Outcome{.findings = report.answers.back().finish_reason == "cancelled"};
}

}  // namespace

void add_generate(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<GenerateConfig>();
    CLI::App* command = app.add_subcommand("generate", "generate an answer to a prompt, or to each of many");
    command->add_option("model", config->model, "a checkpoint: folder or .gguf file")->required();
    CLI::Option* prompt = command->add_option("prompt", config->prompt, "the text; standard input if there is none");
    CLI::Option* file =
        command->add_option("--prompt-file", config->prompt_file, "a file with the text")->excludes(prompt);
    command
        ->add_option("--jsonl", config->jsonl,
                     "lines {\"prompt\"} or {\"messages\"}; prints a line of JSON for each, in order")
        ->excludes(prompt)
        ->excludes(file);
    command->add_flag("--chat", config->chat, "the prompt is a user's message: the chat template is applied");
    command->add_option("--system", config->system, "system message before the prompt")->needs("--chat");
    command->add_option("--batch", config->batch, "answers that run together; does not change any bit")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command->add_flag("--json", config->json, "print JSON: ids, text, log-probabilities, finish reason and timing");
    command->add_flag("--parse-special", config->parse_special,
                      "control tokens in messages keep their function; default: they are plain text");
    add_constraint_flags(*command, config->form);
    add_sampling_flags(*command, config->sampling);
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine, config->quiet);
    add_parallel_flags(*command, config->engine);
    command->footer("Example:\n  nibble generate SmolLM2-135M --chat 'Why is the sky blue?' --seed 7");
    command->callback([config, prompt, &run] {
        config->has_prompt = prompt->count() > 0;
        run = [config] { return run_generate(*config); };
    });
}

}  // namespace nibble
