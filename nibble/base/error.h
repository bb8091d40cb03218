// Errors as values. All functions that read untrusted bytes (files, flags, recipes) return Result<T>; libraries neither
// print nor exit. An Error is one line that states what failed, where, and what to do. `within` puts the outer context
// in front: "model-00002.safetensors: tensor 'x': needs 64 bytes, file has 12". Names and values from files can be used
// directly: the constructor makes them printable (base/utf8.h) and limits the length.
//
// An error also has a kind, for callers that act on it: a language binding maps each kind to an exception. Code that
// knows the kind states it, fail(ErrorKind::usage, "..."); a function whose errors are nearly all of one kind gives it
// to those that have none yet, std::move(result).as(ErrorKind::checkpoint).
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nibble {

enum class ErrorKind : uint8_t {
    other,       // none of the following
    usage,       // options that are wrong, missing, or exclude each other
    shape,       // an array whose size or type does not fit the operation
    recipe,      // a recipe or a run's configuration that cannot be read, or does not fit the model
    checkpoint,  // a model, tokenizer or quantized file whose content is wrong or not supported
    file,        // a file or folder that is missing, exists already, is locked, or cannot be read or written
    device,      // no such GPU, or a GPU that failed
    memory,      // more memory than there is, on the host or on a GPU
    cancelled,   // the caller asked the job to stop
};
std::string_view error_kind_name(ErrorKind kind);  // "usage"

class [[nodiscard]] Error {
public:
    static constexpr size_t most_bytes = 4000;

    explicit Error(std::string_view message, ErrorKind kind = ErrorKind::other);

    const std::string& message() const { return message_; }
    ErrorKind kind() const { return kind_; }

    // Returns "context: message" with the same kind. Outer calls add their context in front.
    Error within(std::string_view context) &&;

    // Sets the kind of an error without one (`other`). A kind that is already set stays.
    Error as(ErrorKind kind) &&;

private:
    std::string message_;
    ErrorKind kind_ = ErrorKind::other;
};

// fail("{}: expected {} bytes, found {}", path, want, have)
template <class... Args>
Error fail(fmt::format_string<Args...> format, Args&&... args) {
    return Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Error fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
    return Error(fmt::format(format, std::forward<Args>(args)...), kind);
}

// A value or an Error. It implements its own storage because every function of the program returns one: with
// std::variant<T, Error> the program takes a tenth longer to compile.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : ok_(true) { std::construct_at(&value_, std::move(value)); }
    Result(Error error) : ok_(false) { std::construct_at(&error_, std::move(error)); }

    Result(const Result& other) requires std::is_copy_constructible_v<T> : ok_(other.ok_) {
        if (ok_)
            std::construct_at(&value_, other.value_);
        else
            std::construct_at(&error_, other.error_);
    }
    Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : ok_(other.ok_) {
        if (ok_)
            std::construct_at(&value_, std::move(other.value_));
        else
            std::construct_at(&error_, std::move(other.error_));
    }
    Result& operator=(Result other) noexcept {
        static_assert(std::is_nothrow_move_constructible_v<T>, "a move that throws would leave nothing to destroy");
        destroy();
        std::construct_at(this, std::move(other));
        return *this;
    }
    ~Result() { destroy(); }

    bool ok() const { return ok_; }
    explicit operator bool() const { return ok_; }

    // Precondition: ok().
    T& operator*() & { return value_; }
    const T& operator*() const& { return value_; }
    T&& operator*() && { return std::move(value_); }
    T* operator->() { return &value_; }
    const T* operator->() const { return &value_; }

    // Precondition: !ok().
    const Error& error() const& { return error_; }
    Error&& error() && { return std::move(error_); }

    Result within(std::string_view context) && {
        if (ok_) return std::move(*this);
        return std::move(error_).within(context);
    }

    Result as(ErrorKind kind) && {
        if (ok_) return std::move(*this);
        return std::move(error_).as(kind);
    }

private:
    void destroy() {
        if (ok_)
            std::destroy_at(&value_);
        else
            std::destroy_at(&error_);
    }

    bool ok_;
    union {
        T value_;
        Error error_;
    };
};

struct Ok {};

// A result without a value. Success: `return Ok{};`
using Status = Result<Ok>;

}  // namespace nibble

#define NIBBLE_CONCAT_INNER(a, b) a##b
#define NIBBLE_CONCAT(a, b) NIBBLE_CONCAT_INNER(a, b)

// NIBBLE_TRY(auto file, MappedFile::open(path)) declares `file`, or returns the error from the calling function.
#define NIBBLE_TRY(declaration, expression) \
    NIBBLE_TRY_INNER(declaration, expression, NIBBLE_CONCAT(nibble_try_, __LINE__))
#define NIBBLE_TRY_INNER(declaration, expression, temporary)  \
    auto temporary = (expression);                            \
    if (!temporary.ok()) return std::move(temporary).error(); \
    declaration = *std::move(temporary)

// NIBBLE_CHECK(writer.finish()) returns an error from the calling function and ignores the value. It is one statement,
// so an `else` after it belongs to the `if` before it.
#define NIBBLE_CHECK(expression)                                        \
    do {                                                                \
        auto nibble_check = (expression);                               \
        if (!nibble_check.ok()) return std::move(nibble_check).error(); \
    } while (false)
