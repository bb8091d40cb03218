// Reads texts that a user provides: lines of a file, or standard input. Only regular files are accepted, so that no
// FIFO or device can block a command; standard input has a size limit.
#pragma once

#include "base/error.h"

#include <functional>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr size_t most_input_bytes = size_t{256} << 20;  // limit of standard input, and of one line

// Calls `take` for every line without its line end, numbered from 1; a byte order mark is skipped. Errors name the file
// and, for a line, its number.
Status for_each_line(const std::string& path, const std::function<Status(std::string_view line)>& take);

// Returns all of standard input, or of the given descriptor. Error: more than `limit` bytes.
Result<std::string> read_standard_input(size_t limit = most_input_bytes, int descriptor = 0);

}  // namespace nibble
