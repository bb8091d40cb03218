// `nibble chat MODEL`: a conversation in the terminal.
#include "cli/engine.h"
#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

namespace nibble {
namespace {

struct ChatConfig {
    std::string path, system;
    int64_t context = 8192;
    EngineFlags engine;
    SamplingFlags sampling;
};

Json first_messages(const ChatConfig& config) {
    Json messages = Json::array();
    if (!config.system.empty()) messages.push_back({{"role", "system"}, {"content", config.system}});
    return messages;
}

int64_t context_of(const ChatConfig& config, const Engine& engine) {
    return std::min(config.context, engine.model->config().context);
}

// The state of a conversation: what was said, and the sequence that holds it.
class Chat {
public:
    // `pool` holds two sequences: a conversation begins anew before the old one ends.
    Chat(const ChatConfig& config, const Engine& engine, const ModelText& text, GenerationParams params,
         std::unique_ptr<KvPool> pool)
        : config_(config),
          engine_(engine),
          text_(text),
          params_(std::move(params)),
          context_(context_of(config, engine)),
          pool_(std::move(pool)),
          past_{pool_->sequence(), {}},
          messages_(first_messages(config)) {}

    // A template that cannot render a first message is an error of the session, not of every turn.
    Status check_template() const {
        Json messages = messages_;
        messages.push_back({{"role", "user"}, {"content", "hello"}});
        NIBBLE_CHECK(encode_chat(text_, messages));
        return Ok{};
    }

    void reset() {
        past_ = {pool_->sequence(), {}};
        messages_ = first_messages(config_);
    }

    // Prints the answer as it comes. An error leaves the conversation as it was.
    Status say(const std::string& line, const std::atomic<bool>* stop) {
        Json messages = messages_;
        messages.push_back({{"role", "user"}, {"content", line}});
        NIBBLE_TRY(std::vector<int32_t> prompt, encode_chat(text_, messages));
        NIBBLE_CHECK(check_prompt(prompt, engine_.model->config().vocab, context_));
        Generation answer(text_.tokenizer, std::move(prompt), params_, turn_++, context_);
        const GenerateOptions options{.on_text =
                                          [](size_t, std::string_view piece) {
                                              std::fwrite(piece.data(), 1, piece.size(), stdout);
                                              std::fflush(stdout);
                                          },
                                      .stop = stop};
        const auto stats = generate(*engine_.model, *pool_, past_, answer, options);
        std::fputs("\n", stdout);
        std::fflush(stdout);
        if (!stats.ok()) {
            past_ = {pool_->sequence(), {}};
            return stats.error();
        }
        if (answer.finish() == FinishReason::length)
            fmt::print(stderr, "[the answer was cut at {} tokens]\n", answer.tokens().size());
        messages.push_back({{"role", "assistant"}, {"content", answer.text()}});
        messages_ = std::move(messages);
        return Ok{};
    }

private:
    const ChatConfig& config_;
    const Engine& engine_;
    const ModelText& text_;
    GenerationParams params_;
    int64_t context_;
    std::unique_ptr<KvPool> pool_;
    Past past_;
    Json messages_;
    uint64_t turn_ = 0;
};

Result<Outcome> run_chat(const ChatConfig& config) {
    NIBBLE_TRY(const ModelText text, open_model_text(config.path));
    if (!text.chat) return fail("{}: has no chat template", config.path);
    ThreadPool pool(config.engine.threads);
    NIBBLE_TRY(const Engine engine, Engine::open(config.path, config.engine, pool));
    NIBBLE_TRY(GenerationParams params, generation_params(config.sampling, engine, text));
    NIBBLE_TRY(auto memory, engine.model->make_pool(context_of(config, engine), 2));
    Chat chat(config, engine, text, std::move(params), std::move(memory));
    NIBBLE_CHECK(chat.check_template().within(config.path));

    const bool terminal = ::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO);
    if (terminal) fmt::print("/reset starts anew, /exit ends, Ctrl-C stops an answer\n");
    Console console(true);
    for (std::string line;;) {
        console.hooks();  // before the prompt shows: a Ctrl-C there is forgiven once
        if (terminal) fmt::print("> ");
        std::fflush(stdout);
        if (!std::getline(std::cin, line) || line == "/exit") break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        if (line == "/reset") {
            chat.reset();
            continue;
        }
        if (line.starts_with('/')) {
            fmt::print(stderr, "nibble: unknown command '{}'; /reset starts anew, /exit ends\n", line);
            continue;
        }
        const JobHooks hooks = console.hooks();  // arms Ctrl-C again: it stops this answer
        if (const Status said = chat.say(line, hooks.stop_requested); !said.ok())
            fmt::print(stderr, "nibble: {}\n", said.error().message());
    }
    if (terminal) fmt::print("\n");
    return Outcome{};
}

}  // namespace

void add_chat(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ChatConfig>();
    CLI::App* command = app.add_subcommand("chat", "a conversation with a model, in the terminal");
    command->add_option("model", config->path, "a checkpoint with a chat template: folder or .gguf file")->required();
    command->add_option("--system", config->system, "a system message before the conversation");
    command->add_option("--context", config->context, "tokens of a conversation, at most the model's")
        ->check(CLI::Range(int64_t{16}, int64_t{1} << 30))
        ->capture_default_str();
    add_sampling_flags(*command, config->sampling);
    add_engine_flags(*command, config->engine);
    command->footer(
        "/reset starts anew, /exit or Ctrl-D ends, Ctrl-C stops an answer.\nExample:\n  nibble chat SmolLM2-135M");
    command->callback([config, &run] { run = [config] { return run_chat(*config); }; });
}

}  // namespace nibble
