#include "text/substring.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace nibble {

size_t find_text(std::string_view text, std::string_view what, Meter& meter, size_t from) {
    constexpr auto npos = std::string_view::npos;
    if (from > text.size() || what.size() > text.size() - from) return npos;
    if (what.empty()) return from;
    if (!meter.pay_look(what.size())) return npos;
    // memmem is linear. The text is searched in parts that overlap by less than the needle, so that the meter can check
    // its deadline in between.
    const size_t part = std::max(size_t{1} << 20, 4 * what.size());
    for (size_t at = from; at + what.size() <= text.size(); at += part - what.size() + 1) {
        const std::string_view here = text.substr(at, part);
        const void* const found = ::memmem(here.data(), here.size(), what.data(), what.size());
        const size_t place = found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : npos;
        if (!meter.pay_look(found ? place - at : here.size())) return npos;
        if (found) return place;
    }
    return npos;
}

// Knuth-Morris-Pratt search from the right. border[k] is the longest proper border of the needle's last k bytes.
size_t rfind_text(std::string_view text, std::string_view what, Meter& meter) {
    constexpr auto npos = std::string_view::npos;
    if (what.size() > text.size()) return npos;
    if (what.empty()) return text.size();
    if (!meter.pay_bytes(static_cast<int64_t>((what.size() + 1) * sizeof(size_t)))) return npos;
    const auto needle = [&](size_t k) { return what[what.size() - 1 - k]; };
    std::vector<size_t> border(what.size() + 1);
    for (size_t k = 1, length = 0; k < what.size(); ++k) {
        while (length > 0 && needle(k) != needle(length)) length = border[length];
        length += needle(k) == needle(length);
        border[k + 1] = length;
    }
    size_t fits = 0;
    for (size_t at = text.size(); at-- > 0;) {
        if (at % 1024 == 0 && !meter.pay_steps(16)) return npos;
        while (fits > 0 && text[at] != needle(fits)) fits = border[fits];
        fits += text[at] == needle(fits);
        if (fits == what.size()) return at;
    }
    return npos;
}

}  // namespace nibble
