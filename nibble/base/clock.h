#pragma once

#include <chrono>

namespace nibble {

inline double to_seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
    return to_seconds(std::chrono::steady_clock::now() - begin);
}

}  // namespace nibble
