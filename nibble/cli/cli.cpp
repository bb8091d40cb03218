#include "cli/cli.h"

#include "cli/command.h"

#include <cstdio>

namespace nibble {

int cli_main(int argc, char** argv) {
    CLI::App app{"nibble: takes large language models from BF16 to four bits and proves what was lost", "nibble"};
    app.require_subcommand(0, 1);  // none is told below: CLI11 would not name a misspelled one
    app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
    app.footer("`nibble COMMAND --help` shows the flags of a command and an example.");
    RunCommand run;
    for (auto add : {add_quantize, add_search, add_verify, add_convert, add_import, add_inspect, add_generate, add_chat,
                     add_eval, add_logits, add_tokenize, add_template, add_formats, add_bench})
        add(app, run);

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : 2;
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
