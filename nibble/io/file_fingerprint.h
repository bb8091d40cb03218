// A cheap fingerprint of a file, to detect that it has changed.
#pragma once

#include "base/error.h"

#include <filesystem>
#include <string>

namespace nibble {

// Returns size, modification time, and a checksum of the first 64 KiB, the last 4 KiB and 62 parts of 4 KiB in between,
// as text: "123456 bytes of 1700000000.000000001, sample 0123456789abcdef". A file that was overwritten in place and
// whose old time was restored still differs in the sample. The inode is not included, because it changes with every
// mount of a network file system. Error: the file cannot be read.
Result<std::string> file_fingerprint(const std::filesystem::path& path);

}  // namespace nibble
