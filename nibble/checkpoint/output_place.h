// Checks the path of an output before the work that fills it.
#pragma once

#include "base/error.h"

#include <filesystem>

namespace nibble {

// Checks that a file or folder of this name can be created, including missing parents, with `bytes_needed` free. Errors
// name the folder: no permission, a file instead of a folder, a full disk. Removes everything it creates.
Status check_output_place(const std::filesystem::path& out, int64_t bytes_needed);

// Checks that files can be created in `folder`, which may exist.
Status check_output_folder(const std::filesystem::path& folder, int64_t bytes_needed);

// Checks that a file can be written: its folder exists, is writable and has `bytes_needed` free, and no folder has the
// file's name. An existing file would be replaced.
Status check_output_file(const std::filesystem::path& file, int64_t bytes_needed = 0);

// Error of kind usage: `out` is inside the source folder, so the next run would read it as one of the source's files.
Status refuse_output_in_source(const std::filesystem::path& out, const std::filesystem::path& source);

}  // namespace nibble
