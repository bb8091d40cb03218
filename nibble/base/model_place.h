// What to say where a model's files are not what is read: the next step of the user.
#pragma once

#include "base/error.h"

#include <filesystem>

namespace nibble {

// Of a path that does not exist. A name of the Hugging Face Hub ("Qwen/Qwen3-8B") comes with the command that fetches
// it.
Error no_such_model(const std::filesystem::path& path);

// Of a folder without *.safetensors: names the weights that are there in another format, and how they are converted.
Error no_safetensors(const std::filesystem::path& folder);

}  // namespace nibble
