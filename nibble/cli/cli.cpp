#include "cli/cli.h"

#include "cli/command.h"
#include "cli/usage.h"
#include "cli/version.h"

#include <cstdio>

namespace nibble {
namespace {

// Scripts pass --quiet to every command.
void add_quiet_where_missing(CLI::App& command) {
    static const std::string what = "accepted by every command; this one prints no progress and no notes";
    const auto subcommands = command.get_subcommands([](CLI::App*) { return true; });
    for (CLI::App* sub : subcommands) add_quiet_where_missing(*sub);
    if (subcommands.empty() && !command.get_option_no_throw("--quiet")) command.add_flag("--quiet", what);
}

// Leaves out the second empty line that CLI11 writes after the flags of commands with hidden ones.
class HelpFormatter : public CLI::Formatter {
public:
    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
        std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
        for (size_t at = 0; (at = text.find("\n\n\n", at)) != text.npos;) text.erase(at, 1);
        return text;
    }
};

}  // namespace

void add_commands(CLI::App& app, RunCommand& run) {
    app.formatter(std::make_shared<HelpFormatter>());
    app.require_subcommand(0, 1);  // a missing command is reported below, because CLI11 would not name a misspelled one
    app.set_version_flag("--version", version_text);
    app.footer("`nibble help COMMAND` shows the flags of a command and an example.");
    for (auto add :
         {add_quantize, add_recipes, add_search,   add_verify,  add_convert, add_import,     add_inspect, add_generate,
          add_chat,     add_serve,   add_train,    add_rl,      add_data,    add_eval,       add_logits,  add_tokenize,
          add_plan,     add_launch,  add_template, add_formats, add_bench,   add_completion, add_help})
        add(app, run);
    add_quiet_where_missing(app);
}

int cli_main(int argc, char** argv) {
    CLI::App app{std::string(program_description), "nibble"};
    RunCommand run;
    add_commands(app, run);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& help_or_version) {
        return app.exit(help_or_version);
    } catch (const CLI::ParseError& e) {
        std::fprintf(stderr, "nibble: %s\n", usage_message(app, e).c_str());
        return 2;
    }
    if (!run) {
        std::fputs(app.help().c_str(), stderr);
        return 2;
    }
    const auto outcome = run();
    if (!outcome.ok()) {
        std::fprintf(stderr, "nibble: %s\n", outcome.error().message().c_str());
        return 1;
    }
    return outcome->findings ? 1 : 0;
}

}  // namespace nibble
