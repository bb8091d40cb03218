// Files that are either the old one or the new one, whole, at any moment, a power cut included.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <filesystem>
#include <string_view>

namespace nibble {

// Writes a new file beside `path`, syncs it, renames it over `path` and syncs the folder. On an error `path` is
// untouched and the new file is removed. A symbolic link at `path` is replaced, not followed. What a writer of the same
// file left that was killed is removed, too.
Status write_file_atomically(const std::filesystem::path& path, Bytes bytes);
Status write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Removes what writers that were killed left in `folder` and below. Only where nobody writes now.
void remove_abandoned_files(const std::filesystem::path& folder);

// Renames and syncs the folders. `from` must already be synced, and both must lie on one file system.
Status rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace nibble
