// What a user may type, checked while the command line is read: choices, values in words, and one line for everything
// that is wrong. All of it ends with exit status 2.
#pragma once

#include "base/error.h"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// One of these words. The help shows them ("TEXT:{a,b}"), and shell completion reads them there.
CLI::Validator one_of(std::vector<std::string> choices);

// Whatever `parse` accepts; its error is the message.
template <class T>
CLI::Validator read_by(Result<T> (*parse)(std::string_view)) {
    return CLI::Validator(
        [parse](std::string& word) {
            const auto value = parse(word);
            return value.ok() ? std::string() : value.error().message();
        },
        "");
}

// For callbacks of CLI11: options that make no sense together. Never returns.
template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> format, Args&&... args) {
    throw CLI::ValidationError(fmt::format(format, std::forward<Args>(args)...));
}

// The command that the words chose so far: `app` itself, a subcommand, or a subcommand's subcommand.
const CLI::App& chosen_command(const CLI::App& app);
// "nibble bench quantize"
std::string full_name(const CLI::App& command);

// One line for a command line that cannot be read, without the prefix "nibble: ". A word that no command and no flag
// bears comes first, with the nearest name: it is often why something else is missing.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble
