// The place of an output, checked before the work that fills it.
#pragma once

#include "base/error.h"

#include <filesystem>

namespace nibble {

// Whether a file or folder of this name can be made, its missing parents included, and has room for `bytes_needed`.
// Errors name the folder: no permission, a file in the place of a folder, a full disk. Removes whatever it wrote.
Status check_output_place(const std::filesystem::path& out, int64_t bytes_needed);

// Whether files can be made in `folder`, which may exist.
Status check_output_folder(const std::filesystem::path& folder, int64_t bytes_needed);

// Whether a file can be written: its folder exists, can be written and has room for `bytes_needed`, and no folder has
// its name. An older file is replaced.
Status check_output_file(const std::filesystem::path& file, int64_t bytes_needed = 0);

// Error of kind usage: `out` lies in the folder that is read, where the next run would take it for the source's own
// files.
Status refuse_output_in_source(const std::filesystem::path& out, const std::filesystem::path& source);

}  // namespace nibble
