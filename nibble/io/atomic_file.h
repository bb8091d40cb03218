// Replaces files atomically: at any moment, even after a power cut, the file is either the whole old one or the whole
// new one.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <filesystem>
#include <string_view>

namespace nibble {

// Writes a new file next to `path`, syncs it, renames it to `path` and syncs the folder. On an error `path` is
// untouched and the new file is removed. A symbolic link at `path` is replaced, not followed. Temporary files that
// killed writers of the same file left are removed, too.
Status write_file_atomically(const std::filesystem::path& path, Bytes bytes);
Status write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Removes temporary files that killed writers left in `folder` and its subfolders. No process may be writing there.
void remove_abandoned_files(const std::filesystem::path& folder);

// Renames a file or folder and syncs the folders. `from` must already be synced, and both paths must be on one file
// system.
Status rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace nibble
