#include "grammar/json_format.h"

#include <utility>

namespace nibble {

#define NIBBLE_DATE                                                                                                  \
    "([1-9]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))" \
    "|([1-9]\\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
#define NIBBLE_TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
// Excludes "--" inside labels, which only encoded labels have.
#define NIBBLE_LABEL "[a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}"
#define NIBBLE_HOST NIBBLE_LABEL "(\\." NIBBLE_LABEL "){0,5}"
#define NIBBLE_CLOCK "(\\d{1,5}H(\\d{1,5}M(\\d{1,5}S)?)?|\\d{1,5}M(\\d{1,5}S)?|\\d{1,5}S)"

std::string_view format_pattern(std::string_view name) {
    static constexpr std::pair<std::string_view, std::string_view> patterns[]{
        {"date", NIBBLE_DATE},
        {"time", NIBBLE_TIME},
        {"date-time", NIBBLE_DATE "T" NIBBLE_TIME},
        {"duration", "P(\\d{1,5}W|(\\d{1,5}Y(\\d{1,5}M(\\d{1,5}D)?)?|\\d{1,5}M(\\d{1,5}D)?|\\d{1,5}D)(T" NIBBLE_CLOCK
                     ")?|T" NIBBLE_CLOCK ")"},
        {"email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30})?@" NIBBLE_HOST},
        {"hostname", NIBBLE_HOST},
        {"ipv4", "((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
        {"uri", "(https?|ftp)://" NIBBLE_HOST
                "(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]*)*(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"json-pointer", "(/([^~/]|~[01])*)*"},
    };
    for (const auto& [key, pattern] : patterns)
        if (key == name) return pattern;
    return {};
}

#undef NIBBLE_DATE
#undef NIBBLE_TIME
#undef NIBBLE_HOST
#undef NIBBLE_LABEL
#undef NIBBLE_CLOCK

}  // namespace nibble
