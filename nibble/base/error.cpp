#include "base/error.h"

#include "base/utf8.h"

namespace nibble {

std::string_view error_kind_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::other:
            return "other";
        case ErrorKind::usage:
            return "usage";
        case ErrorKind::shape:
            return "shape";
        case ErrorKind::recipe:
            return "recipe";
        case ErrorKind::checkpoint:
            return "checkpoint";
        case ErrorKind::file:
            return "file";
        case ErrorKind::device:
            return "device";
        case ErrorKind::memory:
            return "memory";
        case ErrorKind::cancelled:
            return "cancelled";
    }
    return "";
}

Error::Error(std::string_view message, ErrorKind kind) : message_(printable(message, most_bytes)), kind_(kind) {}

Error Error::within(std::string_view context) && { return Error(fmt::format("{}: {}", context, message_), kind_); }

Error Error::as(ErrorKind kind) && {
    if (kind_ == ErrorKind::other) kind_ = kind;
    return std::move(*this);
}

}  // namespace nibble
