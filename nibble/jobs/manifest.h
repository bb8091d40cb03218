// nibble.json, which travels with every checkpoint that nibble writes: who made it, how, and what the recipe wanted.
#pragma once

#include "base/json.h"

#include <string>

namespace nibble {

struct Manifest {
    std::string command_line;
    Json settings = Json::object();
    std::string recipe;
    Json tensors = Json::object();  // to_json(ExpectedFormats); `nibble verify` compares the checkpoint with it
};
std::string to_text(const Manifest& manifest);

}  // namespace nibble
