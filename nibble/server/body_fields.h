// The fields of a request's body, read once each. null counts as absent. A field that is left unread is an error that
// names it: a parameter that does nothing would be silently wrong.
#pragma once

#include "base/json_fields.h"
#include "server/api_error.h"

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace nibble {

class BodyFields {
public:
    using Deadline = std::optional<std::chrono::steady_clock::time_point>;

    // The body outlives the fields. `deadline`: of the whole request.
    explicit BodyFields(const Json& body, Deadline deadline = {}) : body_(&body), deadline_(deadline) {}
    const Deadline& deadline() const { return deadline_; }

    // Null: absent or null.
    const Json* find(std::string_view name);
    bool has(std::string_view name) { return find(name) != nullptr; }
    // Keeps `out` where the field is absent. Error: another type, out of the type's range.
    template <class T>
    Status read(std::string_view name, T& out) {
        const Json* field = find(name);
        if (!field) return Ok{};
        T value{};
        if (!json_value(*field, value)) return bad(name, "wrong type or out of range");
        out = std::move(value);
        return Ok{};
    }
    template <class T>
    Status read_in(std::string_view name, T& out, T least, T most) {
        T value = out;
        NIBBLE_CHECK(read(name, value));
        if (!has(name)) return Ok{};
        if (!(value >= least && value <= most))
            return bad(name, fmt::format("{} is not in [{}, {}]", value, least, most));
        out = value;
        return Ok{};
    }
    // Fields that change nothing here whatever they say.
    void ignore(std::initializer_list<std::string_view> names);
    // A field that is known and not supported: fails unless it is absent or says `neutral`.
    Status only(std::string_view name, const Json& neutral);
    Status all_read() const;
    // "'name': why", and blames the field.
    Error bad(std::string_view name, std::string_view why) const;
    // `code`: OpenAI's word for it, if there is one.
    void blame(std::string_view name, std::string_view code = {}) { blamed_ = name, code_ = code; }
    // What the client is told; behind the deadline that the request is late, whatever ended it.
    ApiError told(const Error& error) const {
        if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return late_error();
        return {.message = error.message(), .param = blamed_, .code = code_};
    }

private:
    const Json* body_;
    Deadline deadline_;
    std::set<std::string, std::less<>> read_;
    mutable std::string blamed_;
    std::string code_;
};

}  // namespace nibble
