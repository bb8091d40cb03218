// Parses records of comma-separated values (RFC 4180) and elements of a JSON list, one after another.
#pragma once

#include "base/error.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Removes the next record from `rest` and returns it, or nothing at the end. Empty lines are skipped. Fields in quotes
// may contain separators, line ends and doubled quotes. Error: an unterminated quote.
Result<std::optional<std::vector<std::string>>> next_record(std::string_view& rest, char separator);

// Removes the next element from `rest`, which begins after the list's '[', and returns it; returns nothing at the ']'.
// Elements are objects, returned unchanged. Errors: another value; an unterminated list or object.
Result<std::optional<std::string_view>> next_element(std::string_view& rest);

}  // namespace nibble
