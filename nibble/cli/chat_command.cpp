// `nibble chat MODEL`: a conversation in the terminal.
#include "base/nearest.h"
#include "base/utf8.h"
#include "cli/engine.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "engine/answer_all.h"

#include <fmt/format.h>

namespace nibble {
namespace {

constexpr std::string_view chat_help =
    "/reset    starts a new conversation\n/exit     ends the session, as Ctrl-D does\n/help     shows this "
    "text\nCtrl-C    stops an answer; at the prompt it drops the line\narrows    edit the line, and recall earlier "
    "lines\n";

struct ChatConfig {
    std::string path, system;
    int64_t context = 8192;
    bool no_history = false, parse_special = false;
    EngineFlags engine;
    SamplingSettings sampling;
    CacheSettings cache;
};

Json first_messages(const ChatConfig& config) {
    Json messages = Json::array();
    if (!config.system.empty()) messages.push_back({{"role", "system"}, {"content", config.system}});
    return messages;
}

// The messages of a conversation. The engine's prefix cache holds the computation for them.
class Chat {
public:
    Chat(const ChatConfig& config, Engine& engine, const ModelText& text, Request like)
        : config_(config), engine_(engine), text_(text), like_(std::move(like)), messages_(first_messages(config)) {}

    // A template that cannot render a first message is an error of the session, not of every turn.
    Status check_template() const {
        Json messages = messages_;
        messages.push_back({{"role", "user"}, {"content", "hello"}});
        NIBBLE_CHECK(encode_chat(text_, messages, config_.parse_special));
        return Ok{};
    }

    void reset() { messages_ = first_messages(config_); }

    // Prints the answer as it is generated. After an error the conversation is unchanged.
    Status say(const std::string& line, const std::atomic<bool>* stop) {
        Json messages = messages_;
        messages.push_back({{"role", "user"}, {"content", line}});
        Request request = like_;
        NIBBLE_TRY(request.prompt, encode_chat(text_, messages, config_.parse_special));
        NIBBLE_CHECK(check_prompt(request.prompt, engine_.model().config().vocab, engine_.capacity()));
        request.sequence = turn_++;
        std::vector<WholeAnswer> answers;
        const AnswerHooks hooks{.on_text =
                                    [](size_t, std::string_view piece) {
                                        std::fwrite(piece.data(), 1, piece.size(), stdout);
                                        std::fflush(stdout);
                                    },
                                .stop = stop};
        const Status done = answer_all(engine_, {std::move(request)}, hooks, answers);
        std::fputs("\n", stdout);
        std::fflush(stdout);
        NIBBLE_CHECK(done);
        if (answers[0].finish == FinishReason::length)
            nibble::say(fmt::format("[the answer was cut at {} tokens]", answers[0].tokens.size()));
        messages.push_back({{"role", "assistant"}, {"content", answers[0].text}});
        messages_ = std::move(messages);
        return Ok{};
    }

private:
    const ChatConfig& config_;
    Engine& engine_;
    const ModelText& text_;
    Request like_;
    Json messages_;
    uint64_t turn_ = 0;
};

Result<Outcome> run_chat(ChatConfig config) {
    NIBBLE_TRY(const bool done, joined(config.engine, printing_hooks(config.engine.quiet)));
    if (done) return Outcome{};
    NIBBLE_TRY(const ModelText text, open_model_text(config.path));
    if (!text.chat) return fail("{}: has no chat template", config.path);
    ThreadPool pool(config.engine.threads);
    NIBBLE_TRY(const Speculation speculation, parse_speculation(config.cache.speculate));
    NIBBLE_TRY(const LoadedModel engine,
               LoadedModel::open(config.path, config.engine, pool, printing_hooks(config.engine.quiet),
                                 speculation.predicts()));
    NIBBLE_TRY(Request like, sampled_request(config.sampling, engine, text));
    // Memory for twice the context, so that a new conversation does not evict the old one.
    NIBBLE_TRY(EngineOptions options, engine_options(config.cache, 2));
    options.context = config.context;
    NIBBLE_TRY(const auto running, Engine::create(engine.model, text.tokenizer, options));
    Chat chat(config, *running, text, std::move(like));
    NIBBLE_CHECK(chat.check_template().within(config.path));

    LineEditor editor(config.no_history ? std::filesystem::path() : chat_history_file(), "> ");
    if (editor.edits() && !config.engine.quiet) fmt::print("/help lists the commands; Ctrl-C stops an answer\n");
    Console console(true);
    for (std::string line;;) {
        const JobHooks hooks = console.hooks();  // before the prompt is shown, so that Ctrl-C drops the line
        std::fflush(stdout);
        const auto end = editor.read(line, hooks.stop_requested);
        if (end == LineEditor::End::interrupted) {
            fmt::print("\n");
            continue;
        }
        if (end == LineEditor::End::end_of_input || line == "/exit") break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        if (line == "/help") {
            fmt::print("{}", chat_help);
            continue;
        }
        if (line == "/reset") {
            chat.reset();
            continue;
        }
        if (line.starts_with('/')) {
            const std::vector<std::string> commands = {"/help", "/reset", "/exit"};
            say(fmt::format("nibble: unknown command '{}'{} (see /help)", printable(line),
                            did_you_mean(line, commands)));
            continue;
        }
        // A Ctrl-C since the line was read stops this answer, because the flag is not cleared in between.
        if (const Status said = chat.say(line, hooks.stop_requested); !said.ok()) {
            NIBBLE_CHECK(ranks_alive(config.engine));
            say("nibble: " + said.error().message());
        }
    }
    if (editor.edits()) fmt::print("\n");
    return Outcome{};
}

}  // namespace

void add_chat(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<ChatConfig>();
    CLI::App* command = app.add_subcommand("chat", "chat with a model in the terminal");
    command->add_option("model", config->path, "a checkpoint with a chat template: folder or .gguf file")->required();
    command->add_option("--system", config->system, "system message at the beginning of the conversation");
    command->add_option("--context", config->context, "most tokens of a conversation, at most the model's context")
        ->check(CLI::Range(int64_t{16}, int64_t{1} << 30))
        ->capture_default_str();
    command->add_flag("--no-history", config->no_history, "do not save the typed lines");
    command->add_flag("--parse-special", config->parse_special,
                      "control tokens in typed text keep their function; default: they are plain text");
    add_sampling_flags(*command, config->sampling);
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine);
    add_parallel_flags(*command, config->engine);
    command->footer(
        "/help, /reset and /exit are commands; Ctrl-C stops an answer. Lines are edited by libedit (~/.editrc) and "
        "kept "
        "in\n~/.local/state/nibble/chat_history.\nExample:\n  nibble chat SmolLM2-135M");
    command->callback([config, &run] { run = [config] { return run_chat(*config); }; });
}

}  // namespace nibble
