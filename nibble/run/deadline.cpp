#include "run/deadline.h"

#include <algorithm>
#include <charconv>

namespace nibble {

Result<double> seconds_of_limit(std::string_view text) {
    const auto refuse = [whole = text] { return fail("'{}' is not a time DD:HH:MM:SS above 0", whole); };
    constexpr double units[] = {1, 60, 3600, 86400};
    const auto colons = static_cast<size_t>(std::ranges::count(text, ':'));
    if (colons > 3) return refuse();
    double seconds = 0;
    for (size_t left = colons + 1; left-- > 0;) {
        const std::string_view part = text.substr(0, text.find(':'));
        double value = 0;
        const auto [end, error] =
            std::from_chars(part.data(), part.data() + part.size(), value, std::chars_format::fixed);
        if (error != std::errc{} || end != part.data() + part.size() || !(value >= 0 && value <= 1e6)) return refuse();
        seconds += value * units[left];
        text.remove_prefix(std::min(text.size(), part.size() + 1));
    }
    if (!(seconds > 0)) return refuse();
    return seconds;
}

bool RunDeadline::is_due(Clock::time_point now) {
    if (seconds_ <= 0) return false;
    sum_ += std::chrono::duration<double>(now - last_).count();
    last_ = now;
    ++steps_;
    return std::chrono::duration<double>(now - start_).count() + sum_ / static_cast<double>(steps_) > seconds_;
}

}  // namespace nibble
