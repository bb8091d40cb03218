// The manual page nibble.1 in the macros of man(7).
#include "cli/command_tree.h"

#include <fmt/format.h>

namespace nibble {
namespace {

// Escapes text for troff: hyphens are those of command lines, and no line begins with a request.
std::string troff(std::string_view text) {
    std::string out;
    bool line_start = true;
    for (const char c : text) {
        if (line_start && (c == '.' || c == '\'')) out += "\\&";
        line_start = c == '\n';
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else
            out += c;
    }
    return out;
}

std::string flag_heading(const FlagEntry& flag) {
    std::string text;
    for (const std::string& name : flag.names)
        text += fmt::format("{}\\fB{}\\fR", text.empty() ? "" : ", ", troff(name));
    if (flag.positional) return fmt::format("\\fI{}\\fR{}", troff(flag.names[0]), flag.many ? " ..." : "");
    if (flag.value.empty()) return text;
    std::string value = flag.value;
    if (!flag.choices.empty()) {
        value.clear();
        for (const std::string& choice : flag.choices) value += (value.empty() ? "" : "|") + choice;
    }
    return fmt::format("{} \\fI{}\\fR", text, troff(value));
}

std::string flag_text(const FlagEntry& flag) {
    std::string text = fmt::format(".TP\n{}\n{}", flag_heading(flag), troff(flag.description));
    if (flag.required && !flag.positional) text += "; required";
    if (!flag.standard.empty()) text += fmt::format("; default {}", troff(flag.standard));
    return text + "\n";
}

std::string command_text(const CommandEntry& command) {
    std::string text = fmt::format(".SS nibble {}", troff(command.name));
    for (const FlagEntry& p : command.positionals)
        text += fmt::format(fmt::runtime(p.required ? " {}{}" : " [{}{}]"), troff(p.names[0]), p.many ? " ..." : "");
    text += fmt::format("\n{}\n", troff(command.description));
    for (const FlagEntry& p : command.positionals) text += flag_text(p);
    for (const FlagEntry& f : command.flags)
        if (f.names.back() != "--help") text += flag_text(f);
    if (!command.footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", troff(command.footer));
    return text;
}

}  // namespace

std::string man_page(const std::vector<CommandEntry>& tree) {
    const CommandEntry& program = tree.front();
    const std::string what = program.description.substr(program.description.find(": ") + 2);
    std::string text = fmt::format(
        ".\\\" Made by `nibble completion man`.\n"
        ".TH NIBBLE 1 \"\" \"nibble {}\" \"User Commands\"\n"
        ".SH NAME\nnibble \\- {}\n"
        ".SH SYNOPSIS\n.B nibble\n.I command\n[\\fIarguments\\fR]\n"
        ".SH COMMANDS\n",
        troff(NIBBLE_VERSION), troff(what));
    for (const CommandEntry& command : tree)
        if (!command.name.empty()) text += command_text(command);
    text +=
        ".SH EXIT STATUS\n"
        ".TP\n0\ndone\n.TP\n1\nfailed, or something was found\n.TP\n2\nwrong usage\n"
        ".SH FILES\n"
        ".TP\n.I $XDG_STATE_HOME/nibble/chat_history\nlines typed into `nibble chat` "
        "(\\fI~/.local/state\\fR where the variable is not set)\n"
        ".TP\n.I OUT.partial\\fR, \\fIOUT.calibration\nan unfinished job, which \\fB\\-\\-resume\\fR continues\n";
    return text;
}

}  // namespace nibble
