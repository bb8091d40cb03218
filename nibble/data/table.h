// Rows of a text: records of comma-separated values (RFC 4180) and elements of a JSON list, one after the other.
#pragma once

#include "base/error.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Takes the next record off `rest`; empty lines are left out; nothing at the end. Fields in quotes may hold separators,
// ends of lines and doubled quotes. Error: a quote that does not end.
Result<std::optional<std::vector<std::string>>> next_record(std::string_view& rest, char separator);

// Takes the next element off `rest`, which begins after the list's '['; returns nothing at the ']'. Elements are
// objects, returned as they are written. Errors: another value, a list or an object that does not end.
Result<std::optional<std::string_view>> next_element(std::string_view& rest);

}  // namespace nibble
