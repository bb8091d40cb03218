// Handles files that become shorter while they are mapped. Reading beyond the new end raises SIGBUS, which would end
// the process without a message. MappedFile registers its maps here. A read beyond the end of a registered file then
// gives zeros, and check_maps() names the file. Code that reads maps calls check_maps() before it uses the results.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <span>
#include <string>

namespace nibble {

// Error: the first mapped file found shorter than its map (see MapFaultScope). Costs one atomic load.
Status check_maps();

// Marks one running job. Faults are remembered until no job runs any more: the next job starts without those of maps
// that were removed since.
class MapFaultScope {
public:
    MapFaultScope();
    ~MapFaultScope();
    MapFaultScope(const MapFaultScope&) = delete;
    MapFaultScope& operator=(const MapFaultScope&) = delete;
};

// Copies the pages that contain `part` to private memory at the same addresses, so later changes of the file do not
// affect them. Memory outside registered maps is not changed. Error: no memory.
Status hold_pages(std::span<const std::byte> part);

// Used by MappedFile. `path` is for messages. Returns false if there are too many maps; this one is then not watched.
bool watch_map(const void* address, size_t size, const std::string& path);
void forget_map(const void* address);

}  // namespace nibble
