#include "cli/command_tree.h"

namespace nibble {
namespace {

// Splits "TEXT:{a,b}" into "TEXT" and the choices.
void read_type(const std::string& type, FlagEntry& flag) {
    const size_t colon = type.find(':');
    flag.value = type.substr(0, colon);
    const size_t begin = type.find('{', colon == type.npos ? type.size() : colon), end = type.rfind('}');
    if (begin == type.npos || end == type.npos) return;
    for (size_t at = begin + 1; at < end;) {
        const size_t comma = std::min(type.find(',', at), end);
        flag.choices.push_back(type.substr(at, comma - at));
        at = comma + 1;
    }
}

FlagEntry flag_of(const CLI::Option& option) {
    FlagEntry flag;
    flag.positional = option.get_positional();
    for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
    if (flag.positional) flag.names = {option.get_name(true, false)};
    if (option.get_items_expected_max() > 0) read_type(option.get_type_name(), flag);
    flag.standard = option.get_default_str();
    flag.description = option.get_description();
    flag.required = option.get_required();
    flag.many = option.get_items_expected_max() > 1;
    return flag;
}

void add_commands(const CLI::App& command, const std::string& name, std::vector<CommandEntry>& tree) {
    CommandEntry entry{.name = name, .description = command.get_description(), .footer = command.get_footer()};
    for (const CLI::Option* option : command.get_options()) {
        if (option->get_group().empty()) continue;  // not shown in the help either
        FlagEntry flag = flag_of(*option);
        (flag.positional ? entry.positionals : entry.flags).push_back(std::move(flag));
    }
    const auto subcommands = command.get_subcommands([](const CLI::App*) { return true; });
    for (const CLI::App* sub : subcommands) entry.subcommands.push_back(sub->get_name());
    tree.push_back(std::move(entry));
    for (const CLI::App* sub : subcommands)
        add_commands(*sub, name.empty() ? sub->get_name() : name + " " + sub->get_name(), tree);
}

}  // namespace

std::vector<CommandEntry> command_tree(const CLI::App& app) {
    std::vector<CommandEntry> tree;
    add_commands(app, "", tree);
    return tree;
}

}  // namespace nibble
