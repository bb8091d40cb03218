// What a file looked like, cheaply: enough to see that it is another one now.
#pragma once

#include "base/error.h"

#include <filesystem>
#include <string>

namespace nibble {

// Size, time of the last change, and a checksum of the first 64 KiB, the last 4 KiB and 62 parts of 4 KiB in between,
// as text: "123456 bytes of 1700000000.000000001, sample 0123456789abcdef". A file that was overwritten in place and
// given its old time again differs in the sample. Not the inode: the same file has another one after a network mount.
Result<std::string> file_fingerprint(const std::filesystem::path& path);

}  // namespace nibble
