// Files that become shorter while they are mapped. Reading beyond the new end is a SIGBUS, which would end the process
// without a word. MappedFile lists its maps here; where one of them is read beyond its file, zeros take the place of
// what is gone, and check_maps() names the file. Whoever reads maps asks before it uses the results.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <string>

namespace nibble {

// Error: the first mapped file that was found shorter than its map, since the process began. One atomic load.
Status check_maps();

// For MappedFile. `path` is for the message. False: there are too many maps, this one is not watched.
bool watch_map(const void* address, size_t size, const std::string& path);
void forget_map(const void* address);

}  // namespace nibble
