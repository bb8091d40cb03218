// The command that a job runs for.
#pragma once

#include <string>

namespace nibble {

// Callers other than the command line may leave both empty.
struct CommandText {
    std::string whole;  // as typed: goes into nibble.json and into reports
    std::string card;   // without options that change no byte of the output: goes into README.md
};

}  // namespace nibble
