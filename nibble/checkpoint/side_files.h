// The files beside the weights of a Hugging Face folder: tokenizer, chat template, code, README.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// Returns every file of the folder and its subfolders except hidden ones, weights and their indexes, and the documents
// that describe this checkpoint itself (config.json, hf_quant_config.json, nibble.json). Sorted by name. Links to files
// are followed, also out of the folder: the hub cache is made of such links, and users assemble folders from them.
// Errors: a link to a folder, a link without a target, something that is not a plain file.
Result<std::vector<Checkpoint::SideFile>> list_side_files(const std::filesystem::path& folder);

// Whether a name stays inside the folder it is put in: relative, in plain form, no "..".
bool is_inside_name(std::string_view name);

}  // namespace nibble
