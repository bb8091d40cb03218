// Memory for what has to happen after an allocation failed. Destructors may allocate (those of JSON values do), and an
// exception in one ends the program.
#pragma once

namespace nibble {

// Allocates a reserve. The first allocation that fails frees the reserve and is tried again. If it fails again, it
// throws std::bad_alloc, and so does every later allocation that fails.
void hold_memory_reserve();

// Allocates the reserve again if it was freed. Returns false if there is not enough memory.
bool refill_memory_reserve();

}  // namespace nibble
