// nibble.json, which travels with every checkpoint that nibble writes: who made it, how, and what the recipe wanted.
#pragma once

#include "base/json.h"

#include <string>

namespace nibble {

// The command that a job runs for. A caller other than the command line may leave both empty.
struct CommandText {
    std::string whole;  // as typed: goes into nibble.json and reports
    std::string card;   // without options that change no byte of the output: goes into README.md
};

struct Manifest {
    std::string command_line;
    Json settings = Json::object();
    std::string recipe;
    Json tensors = Json::object();  // to_json(ExpectedFormats); `nibble verify` compares the checkpoint with it
};
std::string to_text(const Manifest& manifest);

}  // namespace nibble
