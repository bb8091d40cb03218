// Messages about models that cannot be read, with the user's next step.
#pragma once

#include "base/error.h"

#include <filesystem>

namespace nibble {

// Describes a path that does not exist. A name of the Hugging Face Hub ("Qwen/Qwen3-8B") comes with the command that
// fetches it.
Error no_such_model(const std::filesystem::path& path);

// Error: the folder is a LoRA adapter of PEFT and no model.
Status check_no_adapter(const std::filesystem::path& folder);

// Describes a folder without *.safetensors: names the weights in other formats and how to convert them.
Error no_safetensors(const std::filesystem::path& folder);

}  // namespace nibble
