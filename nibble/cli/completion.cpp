// Completion for three shells. Each script follows the words before the cursor to the command that they name and offers
// its subcommands, flags and the values of flags with few values. All other words are completed as file names.
#include "cli/command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nibble {
namespace {

// Presets are requested from the program when they are needed.
bool names_recipe(const FlagEntry& flag) { return std::ranges::find(flag.names, "--recipe") != flag.names.end(); }

// A number, for which nothing can be offered.
bool is_free_number(const FlagEntry& flag) {
    return flag.choices.empty() && !flag.value.empty() && flag.value != "TEXT" && !flag.value.starts_with("TEXT ");
}

std::vector<std::string> all_flag_names(const CommandEntry& command) {
    std::vector<std::string> names;
    for (const FlagEntry& flag : command.flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
    return names;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
    for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size()) text.replace(at, what.size(), by);
    return text;
}

// Quote a text for bash and zsh, and for fish.
std::string posix_quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }
std::string fish_quoted(const std::string& text) {
    return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

// Adds a case ("parent word" -> command) for every command.
template <class Case>
void each_step(const std::vector<CommandEntry>& tree, Case add) {
    for (const CommandEntry& parent : tree)
        for (const std::string& word : parent.subcommands)
            add(parent.name + " " + word, parent.name.empty() ? word : parent.name + " " + word);
}

// Returns true if the command's argument is a command of the program, as for `nibble help`.
bool names_commands(const CommandEntry& command) { return command.name == "help"; }

// Returns the name of a zsh function.
std::string zsh_function(const std::string& command) {
    return command.empty() ? "_nibble" : "_nibble_" + replaced(command, " ", "_");
}

std::string zsh_words(const std::string& text) {
    return replaced(replaced(replaced(replaced(text, "\\", "\\\\"), "[", "\\["), "]", "\\]"), ":", "\\:");
}

std::string zsh_flag(const FlagEntry& flag) {
    std::string value;
    if (names_recipe(flag))
        value = ":recipe:{compadd - ${(f)\"$(nibble recipes --names)\"}; _files}";
    else if (!flag.choices.empty())
        value = fmt::format(":value:({})", fmt::join(flag.choices, " "));
    else if (is_free_number(flag))
        value = ":number:";
    else if (!flag.value.empty())
        value = ":file:_files";
    std::string text;
    for (const std::string& name : flag.names)
        text += fmt::format("    {}", posix_quoted(fmt::format("*{}[{}]{}", name, zsh_words(flag.description), value)));
    return replaced(text, "'    '", "' '");
}

}  // namespace

std::string bash_completion(const std::vector<CommandEntry>& tree) {
    std::string steps, values, words;
    each_step(tree, [&](const std::string& step, const std::string& command) {
        steps += fmt::format("            '{}') command='{}' ;;\n", step, command);
    });
    for (const CommandEntry& command : tree) {
        for (const FlagEntry& flag : command.flags) {
            if (flag.value.empty()) continue;
            std::vector<std::string> keys;
            for (const std::string& name : flag.names) keys.push_back(fmt::format("'{} {}'", command.name, name));
            std::string action = "return";
            if (names_recipe(flag))
                action = "COMPREPLY=($(compgen -W \"$(nibble recipes --names)\" -- \"$cur\")); return";
            else if (!flag.choices.empty())
                action =
                    fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return", fmt::join(flag.choices, " "));
            values += fmt::format("        {}) {} ;;\n", fmt::join(keys, "|"), action);
        }
        words += fmt::format("        '{}') commands='{}' flags='{}' ;;\n", command.name,
                             fmt::join(command.subcommands, " "), fmt::join(all_flag_names(command), " "));
    }
    return fmt::format(
        "# Completion of nibble for bash, made by `nibble completion bash`.\n"
        "_nibble() {{\n"
        "    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= commands= flags= i\n"
        "    COMPREPLY=()\n"
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "        case \"$command ${{COMP_WORDS[i]}}\" in\n"
        "{}"
        "        esac\n"
        "    done\n"
        "    case \"$command $prev\" in\n"
        "{}"
        "    esac\n"
        "    case \"$command\" in\n"
        "{}"
        "    esac\n"
        "    if [[ $command == help* || -z $command ]]; then commands=${{commands:-'{}'}}; fi\n"
        "    if [[ $cur == -* ]]; then commands=$flags; fi\n"
        "    COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))\n"
        "}}\n"
        "complete -o bashdefault -o default -F _nibble nibble\n",
        steps, values, words, fmt::join(tree.front().subcommands, " "));
}

std::string zsh_completion(const std::vector<CommandEntry>& tree) {
    std::string text =
        "#compdef nibble\n"
        "# Completion of nibble for zsh, made by `nibble completion zsh`.\n";
    for (const CommandEntry& command : tree) {
        text += fmt::format("\n{}() {{\n", zsh_function(command.name));
        std::string flags;
        for (const FlagEntry& flag : command.flags) flags += " \\\n" + zsh_flag(flag);
        if (command.subcommands.empty()) {
            const std::string words = names_commands(command)
                                          ? fmt::format("1:command:({})", fmt::join(tree.front().subcommands, " "))
                                          : "*:file:_files";
            text += fmt::format("  _arguments -s{} \\\n    '{}'\n}}\n", flags, words);
            continue;
        }
        std::string commands, cases;
        for (const CommandEntry& sub : tree) {
            const std::string prefix = command.name.empty() ? "" : command.name + " ";
            if (sub.name.empty() || !sub.name.starts_with(prefix)) continue;
            const std::string word = sub.name.substr(prefix.size());
            if (std::ranges::find(command.subcommands, word) == command.subcommands.end()) continue;
            commands += fmt::format("    {}\n", posix_quoted(word + ":" + zsh_words(sub.description)));
            cases += fmt::format("      {}) {} ;;\n", word, zsh_function(sub.name));
        }
        text += fmt::format(
            "  local curcontext=$curcontext state line\n"
            "  local -a commands=(\n{}  )\n"
            "  _arguments -C{} \\\n    '1:command:->command' '*::argument:->rest'\n"
            "  case $state in\n"
            "    command) _describe command commands ;;\n"
            "    rest) case $line[1] in\n{}    esac ;;\n"
            "  esac\n"
            "}}\n",
            commands, flags, cases);
    }
    return text + "\nif [[ $funcstack[1] == _nibble ]]; then _nibble \"$@\"; else compdef _nibble nibble; fi\n";
}

std::string fish_completion(const std::vector<CommandEntry>& tree) {
    std::string steps, lines;
    each_step(tree, [&](const std::string& step, const std::string& command) {
        steps += fmt::format("            case {}\n                set command {}\n", fish_quoted(step),
                             fish_quoted(command));
    });
    for (const CommandEntry& command : tree) {
        const std::string here =
            fmt::format("complete -c nibble -n {}", fish_quoted("__nibble_at '" + command.name + "'"));
        const CommandEntry& parent = names_commands(command) ? tree.front() : command;
        for (const std::string& word : parent.subcommands) {
            const std::string name = parent.name.empty() ? word : parent.name + " " + word;
            const auto sub = std::ranges::find(tree, name, &CommandEntry::name);
            lines += fmt::format("{} -f -a {} -d {}\n", here, word, fish_quoted(sub->description));
        }
        for (const FlagEntry& flag : command.flags) {
            lines += here;
            for (const std::string& name : flag.names)
                lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
            if (names_recipe(flag))
                lines += " -r -a '(nibble recipes --names)'";
            else if (!flag.choices.empty())
                lines += fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
            else if (is_free_number(flag))
                lines += " -x";
            else if (!flag.value.empty())
                lines += " -r";
            lines += fmt::format(" -d {}\n", fish_quoted(flag.description));
        }
    }
    return fmt::format(
        "# Completion of nibble for fish, made by `nibble completion fish`.\n"
        "function __nibble_at\n"
        "    set -l command ''\n"
        "    for word in (commandline -opc)[2..-1]\n"
        "        switch \"$command $word\"\n"
        "{}"
        "        end\n"
        "    end\n"
        "    test \"$command\" = \"$argv[1]\"\n"
        "end\n"
        "{}",
        steps, lines);
}

}  // namespace nibble
