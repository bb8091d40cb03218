// Memory for what has to happen after an allocation failed. Destructors may allocate (those of JSON values do), and an
// exception in one ends the program.
#pragma once

namespace nibble {

// Holds some memory from now on. The first allocation that fails gives it back and is tried again; where it fails once
// more it throws std::bad_alloc, as the allocations after it do that fail.
void hold_memory_reserve();

// Holds it again where it was given back. False: so much memory is not there.
bool refill_memory_reserve();

}  // namespace nibble
