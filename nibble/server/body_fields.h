// Reads the fields of a request's body. A field that stays unread is an error: a parameter without effect would be
// silently wrong.
#pragma once

#include "base/fields.h"
#include "server/api_error.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

class BodyFields : public Fields {
public:
    using Deadline = std::optional<std::chrono::steady_clock::time_point>;

    // The body outlives the fields. `deadline`: of the whole request. `cancel`: ends its work once it is true; may be
    // null.
    explicit BodyFields(const Json& body, Deadline deadline = {}, const std::atomic<bool>* cancel = nullptr)
        : Fields(body, {}, {.unknown = "is not a parameter of this route"}), deadline_(deadline), cancel_(cancel) {}
    const Deadline& deadline() const { return deadline_; }
    const std::atomic<bool>* cancel() const { return cancel_; }

    // Names the field that the next error is about. `code`: OpenAI's word for it, if there is one.
    void blame(std::string_view name, std::string_view code = {}) { set_blamed(name), code_ = code; }
    // Returns the error that the client gets. After the deadline it is always the timeout error.
    ApiError client_error(const Error& error) const {
        if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return late_error();
        return {.message = error.message(), .param = blamed(), .code = code_};
    }

private:
    Deadline deadline_;
    const std::atomic<bool>* cancel_;
    std::string code_;
};

}  // namespace nibble
