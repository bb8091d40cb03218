// The files beside the weights of a Hugging Face folder: tokenizer, chat template, code, README.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// Every file of the folder and its subfolders but hidden ones, weights and their indexes, and the documents that
// describe this checkpoint itself (config.json, hf_quant_config.json, nibble.json). Sorted by name. Error: a link that
// leads out of the folder, except into the blobs of the hub cache that the folder is a snapshot of.
Result<std::vector<Checkpoint::SideFile>> list_side_files(const std::filesystem::path& folder);

// Whether a name stays inside the folder it is put in: relative, in plain form, no "..".
bool is_inside_name(std::string_view name);

}  // namespace nibble
