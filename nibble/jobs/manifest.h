// nibble.json, which is stored with every checkpoint that nibble writes: the command, the settings, and the formats
// that the recipe required.
#pragma once

#include "base/json.h"

#include <string>

namespace nibble {

struct Manifest {
    std::string command_line;
    Json settings = Json::object();
    std::string recipe;
    Json tensors = Json::object();  // to_json(ExpectedFormats), with which `nibble verify` compares the checkpoint
};
std::string to_text(const Manifest& manifest);

}  // namespace nibble
