#include "base/error.h"

#include "base/utf8.h"

namespace nibble {

Error::Error(std::string_view message) : message_(printable(message, most_bytes)) {}

Error Error::within(std::string_view context) && { return Error(fmt::format("{}: {}", context, message_)); }

}  // namespace nibble
