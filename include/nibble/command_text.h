// The command line for which a job runs.
#pragma once

#include <string>

namespace nibble {

// Callers other than the command line may leave both members empty.
struct CommandText {
    std::string whole;  // the command as typed; stored in nibble.json and in reports
    std::string card;   // without options that change no byte of the output; stored in README.md
};

}  // namespace nibble
