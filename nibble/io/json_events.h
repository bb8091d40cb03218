// Parses JSON as a stream of events. For files whose object has a hundred thousand keys: no document is built (the
// ordered document of base/json.h takes time quadratic in the number of keys). An event that a reader does not handle
// is an error.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

// Handlers return true to continue. `stop(...)` records an error and returns false.
class JsonEvents {
public:
    virtual ~JsonEvents() = default;

    virtual bool open_object() { return unexpected("an object"); }
    virtual bool close_object() { return unexpected("the end of an object"); }
    virtual bool open_array() { return unexpected("an array"); }
    virtual bool close_array() { return unexpected("the end of an array"); }
    virtual bool key(std::string&) { return unexpected("a key"); }  // the handler may move the key, as in text()
    virtual bool text(std::string&) { return unexpected("a string"); }
    virtual bool whole_number(uint64_t) { return unexpected("a number"); }
    // A negative number, a fraction, a number beyond 64 bits, true, false or null; `what` names it.
    virtual bool other(std::string_view what) { return unexpected(what); }

    virtual bool unexpected(std::string_view what) { return stop(fmt::format("unexpected {}", what)); }
    bool stop(std::string reason) {
        problem_ = std::move(reason);
        return false;
    }
    const std::string& problem() const { return problem_; }

private:
    std::string problem_;
};

// Parses the text. Errors: that of a handler; text that is not JSON (RFC 8259, UTF-8, no byte order mark, nothing after
// the value but white space), with its position.
Status read_json_events(std::string_view text, JsonEvents& events);

// Returns 'name' for an error message: at most 200 bytes of it, as one line of ASCII with JSON's escapes.
std::string show_name(std::string_view name);

}  // namespace nibble
