// The floating-point control of a thread: round to nearest, subnormals kept, no traps. Programs that load nibble as a
// library may have changed it (torch.set_flush_denormal), and new threads inherit the change; bits would depend on it.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace nibble {

#if defined(__x86_64__)
inline constexpr unsigned default_float_control = 0x1F80;

// Sets the default control of the calling thread for good. For threads that nibble makes.
inline void set_float_control() { _mm_setcsr(default_float_control); }

// Sets the default control of the calling thread, and the thread's own again at the end of the scope.
class FloatControlScope {
public:
    FloatControlScope() : before_(_mm_getcsr()) { _mm_setcsr(default_float_control); }
    ~FloatControlScope() { _mm_setcsr(before_); }
    FloatControlScope(const FloatControlScope&) = delete;
    FloatControlScope& operator=(const FloatControlScope&) = delete;

private:
    unsigned before_;
};
#else
inline void set_float_control() {}
class FloatControlScope {
public:
    FloatControlScope() {}
};
#endif

}  // namespace nibble
