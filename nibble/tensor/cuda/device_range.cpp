#include "tensor/device_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace nibble {

void push_device_range(const char* name) { nvtxRangePushA(name); }
void pop_device_range() { nvtxRangePop(); }

}  // namespace nibble
#else

namespace nibble {

void push_device_range(const char*) {}
void pop_device_range() {}

}  // namespace nibble
#endif
