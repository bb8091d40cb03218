#include "io/json_events.h"

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

using EventJson = nlohmann::json;

// Returns ASCII without control characters; bytes that are not UTF-8 become \ufffd.
std::string escaped(std::string_view text) {
    const std::string quoted = EventJson(text).dump(-1, ' ', true, EventJson::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
}

class Adapter {
public:
    explicit Adapter(JsonEvents& events) : events_(events) {}

    bool null() { return events_.other("null"); }
    bool boolean(bool v) { return events_.other(v ? "true" : "false"); }
    bool number_integer(EventJson::number_integer_t) { return events_.other("a negative number"); }
    bool number_unsigned(EventJson::number_unsigned_t v) { return events_.whole_number(v); }
    bool number_float(EventJson::number_float_t, const std::string& s) { return events_.other(show_name(s)); }
    bool string(std::string& v) { return events_.text(v); }
    bool binary(EventJson::binary_t&) { return events_.other("binary data"); }
    bool start_object(size_t) { return events_.open_object(); }
    bool end_object() { return events_.close_object(); }
    bool start_array(size_t) { return events_.open_array(); }
    bool end_array() { return events_.close_array(); }
    bool key(std::string& k) { return events_.key(k); }
    bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) {
        // The library's message is "[json.exception.parse_error.101] parse error at line 1, column 2: reason; ...".
        const std::string_view what = e.what();
        const size_t cut = what.find(": ");
        const std::string_view reason = cut == what.npos ? what : what.substr(cut + 2);
        return events_.stop(fmt::format("invalid JSON at byte {}: {}", byte, escaped(reason.substr(0, 200))));
    }

private:
    JsonEvents& events_;
};

}  // namespace

Status read_json_events(std::string_view text, JsonEvents& events) {
    // The library accepts two invalid inputs: it treats a zero byte as the end of the text, and it skips a byte order
    // mark.
    if (const size_t zero = text.find('\0'); zero != text.npos) return fail("invalid JSON at byte {}: zero byte", zero);
    if (text.starts_with("\xEF\xBB\xBF")) return fail("invalid JSON: starts with a byte order mark");
    Adapter adapter(events);
    if (!EventJson::sax_parse(text.begin(), text.end(), &adapter)) return Error(events.problem());
    return Ok{};
}

std::string show_name(std::string_view name) {
    constexpr size_t limit = 200;
    return fmt::format("'{}{}'", escaped(name.substr(0, limit)), name.size() > limit ? "..." : "");
}

}  // namespace nibble
