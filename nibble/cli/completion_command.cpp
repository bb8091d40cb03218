// `nibble completion SHELL`: prints a shell's completion script for nibble, or the manual page. Both are made from the
// definition that parses the command line.
#include "cli/command.h"
#include "cli/command_tree.h"
#include "cli/usage.h"

#include <cstdio>

namespace nibble {

void add_completion(CLI::App& app, RunCommand& run) {
    auto shell = std::make_shared<std::string>();
    CLI::App* command = app.add_subcommand("completion", "print a shell's completion script, or the manual page");
    command->add_option("shell", *shell, "bash, zsh, fish; man: the page nibble.1")
        ->required()
        ->check(one_of({"bash", "zsh", "fish", "man"}));
    command->footer(
        "Examples:\n"
        "  source <(nibble completion bash)\n"
        "  nibble completion zsh >~/.zfunc/_nibble\n"
        "  nibble completion fish >~/.config/fish/completions/nibble.fish\n"
        "  nibble completion man | man -l -");
    command->callback([shell, &app, &run] {
        run = [shell, &app]() -> Result<Outcome> {
            const auto tree = command_tree(app);
            const std::string text = *shell == "bash"   ? bash_completion(tree)
                                     : *shell == "zsh"  ? zsh_completion(tree)
                                     : *shell == "fish" ? fish_completion(tree)
                                                        : man_page(tree);
            std::fwrite(text.data(), 1, text.size(), stdout);
            return Outcome{};
        };
    });
}

}  // namespace nibble
