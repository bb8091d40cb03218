// Files that become shorter while they are mapped. Reading beyond the new end is a SIGBUS, which would end the process
// without a word. MappedFile lists its maps here; where one of them is read beyond its file, zeros take the place of
// what is gone, and check_maps() names the file. Whoever reads maps asks before it uses the results.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <span>
#include <string>

namespace nibble {

// Error: the first mapped file that was found shorter than its map, since the process began. One atomic load.
Status check_maps();

// Copies the pages that hold `part` into memory of this process, at their addresses: whatever becomes of the file then
// changes nothing of them. What lies in no watched map is left alone. Error: no memory.
Status hold_pages(std::span<const std::byte> part);

// For MappedFile. `path` is for the message. False: there are too many maps, this one is not watched.
bool watch_map(const void* address, size_t size, const std::string& path);
void forget_map(const void* address);

}  // namespace nibble
