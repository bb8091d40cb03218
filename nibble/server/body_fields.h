// Reads the fields of a request's body once each. null counts as absent. An unread field is an error that names it,
// because ignoring an unknown parameter would silently change the result.
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

    // The body must outlive the object. `deadline`: deadline of the whole request.
    explicit BodyFields(const Json& body, Deadline deadline = {}) : body_(&body), deadline_(deadline) {}
    const Deadline& deadline() const { return deadline_; }

    // Returns the field; null: absent or null.
    const Json* find(std::string_view name);
    bool has(std::string_view name) { return find(name) != nullptr; }
    // Sets `out` if the field is present. Error: another type, or out of the type's range.
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
    // Marks fields as read that have no effect on this server.
    void ignore(std::initializer_list<std::string_view> names);
    // Error: the field is present with another value than `neutral`, which would require an unsupported feature.
    Status only(std::string_view name, const Json& neutral);
    Status all_read() const;
    // Returns the error "'name': why" and records the field for ApiError::param.
    Error bad(std::string_view name, std::string_view why) const;
    // Records the field that caused the error. `code`: OpenAI's error code, if there is one.
    void blame(std::string_view name, std::string_view code = {}) { blamed_ = name, code_ = code; }
    // Returns the error for the client. After the deadline it is always the timeout error.
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
