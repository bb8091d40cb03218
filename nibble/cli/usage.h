// Checks of user input during parsing: choices, words and values, and one-line messages for everything wrong. All
// errors end with exit status 2.
#pragma once

#include "base/error.h"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Accepts one of these words. The help shows them ("TEXT:{a,b}"), and shell completion uses them.
CLI::Validator one_of(std::vector<std::string> choices);

// Accepts every text that `parse` accepts; the parser's error is the message.
template <class T>
CLI::Validator read_by(Result<T> (*parse)(std::string_view)) {
    return CLI::Validator(
        [parse](std::string& word) {
            const auto value = parse(word);
            return value.ok() ? std::string() : value.error().message();
        },
        "");
}

// For callbacks of CLI11: reports options that contradict each other. Never returns.
template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> format, Args&&... args) {
    throw CLI::ValidationError(fmt::format(format, std::forward<Args>(args)...));
}

// Returns the chosen command: `app` itself, a subcommand, or a subcommand of that.
const CLI::App& chosen_command(const CLI::App& app);
// Returns "nibble bench quantize".
std::string full_name(const CLI::App& command);

// Returns a one-line message for a command line that cannot be parsed, without the prefix "nibble: ". An unknown
// command or flag is reported first, with the nearest name, because it often causes other errors.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble
