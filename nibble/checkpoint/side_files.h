// The files of a Hugging Face folder in addition to the weights: tokenizer, chat template, code, README.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// Returns every file of the folder and its subfolders except hidden ones, weights and their indexes, and the documents
// that describe this checkpoint itself (config.json, hf_quant_config.json, nibble.json). Sorted by name. Links to files
// are followed, also out of the folder: the hub cache consists of such links, and users assemble folders from them.
// Errors: a link to a folder, a link without a target, something that is not a plain file.
Result<std::vector<Checkpoint::SideFile>> list_side_files(const std::filesystem::path& folder);

// A line about the side files of `folder` that are links to files outside of it, which a written checkpoint holds as
// copies; empty: there are none. Links of the hub cache (snapshots/REVISION to blobs) do not count.
std::string outside_links_note(const std::filesystem::path& folder, std::span<const Checkpoint::SideFile> files);

// Returns true if a name stays inside the folder that it is relative to: relative, normalized, without "..".
bool is_inside_name(std::string_view name);

}  // namespace nibble
