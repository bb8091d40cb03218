// Checks and conversions that the host side of every operation makes before it launches a kernel.
#pragma once

#include "tensor/cuda/call.h"

#include <initializer_list>

namespace nibble::cuda {

// Returns the CUDA stream of `stream`.
inline cudaStream_t queue_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

// Returns an error unless there are rows and their width is a multiple of 8, as 16-byte loads of BF16 need.
inline Status check_rows(std::string_view what, int64_t tokens, int64_t width) {
    if (tokens < 1 || width < 8 || width % 8)
        return fail("{}: {} rows of {}; widths are multiples of 8", what, tokens, width);
    return Ok{};
}

// Returns an error unless each pointer (null passes) is 16-byte aligned.
inline Status check_aligned(std::string_view what, std::initializer_list<const void*> pointers) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 16) return fail("{}: device pointers must be 16-byte aligned", what);
    return Ok{};
}

}  // namespace nibble::cuda
