// Limits the cost of one input: 10 s of processor time (wall time depends on the machine more than on the input) and
// 512 MiB allocated at once. They are checked when the object is destroyed. The limits of the engines are far below.
// Without AddressSanitizer, memory is not counted.
#pragma once

#include "message.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

#if __has_include(<sanitizer/allocator_interface.h>) && defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/allocator_interface.h>
#define NIBBLE_COUNTS_MEMORY 1
#endif
#endif

class Judge {
public:
    Judge() : start_(seconds()) {
#ifdef NIBBLE_COUNTS_MEMORY
        static const int installed = __sanitizer_install_malloc_and_free_hooks(
            [](const volatile void* at, size_t) {
                if (!counting) return;
                live += static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(at)));
                peak = std::max(peak.load(), live.load());
            },
            [](const volatile void* at) {
                if (counting && at)
                    live -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(at)));
            });
        require(installed > 0);
#endif
        live = peak = 0;
        counting = true;
    }
    ~Judge() {
        counting = false;
        require(seconds() - start_ < most_seconds);
        require(peak < most_bytes);
    }
    Judge(const Judge&) = delete;
    Judge& operator=(const Judge&) = delete;

private:
    static constexpr double most_seconds = 10;
    static constexpr int64_t most_bytes = int64_t{512} << 20;

    static double seconds() {
        timespec now{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    }

    static inline std::atomic<bool> counting{false};
    static inline std::atomic<int64_t> live{0}, peak{0};
    double start_;
};
