// Texts that a user hands over: lines of a file, or standard input. Only regular files are read, so that no FIFO and no
// device holds a command up; standard input has a limit.
#pragma once

#include "base/error.h"

#include <functional>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr size_t most_input_bytes = size_t{256} << 20;  // of standard input, and of one line

// Every line without its line end (and the file without a byte order mark), numbered from 1. Errors name the file and,
// of one line, its number.
Status for_each_line(const std::string& path, const std::function<Status(std::string_view line)>& take);

// All of standard input, or of the descriptor given. Error: more than `limit` bytes.
Result<std::string> read_standard_input(size_t limit = most_input_bytes, int descriptor = 0);

}  // namespace nibble
