// UTF-8 by code point, and Python's definitions of white space and case.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::jinja {

// Returns the code point at `position` and advances `position` past it. Precondition: valid UTF-8, position < size.
char32_t next_code_point(std::string_view text, size_t& position);
void append_code_point(std::string& out, char32_t c);
size_t code_points(std::string_view text);
// Returns the byte offset of every code point, then the size.
std::vector<size_t> offsets(std::string_view text);

bool is_space(char32_t c);  // str.isspace
enum class Side { left = 1, right = 2, both = 3 };
// str.strip: removes code points in `set`, or white space.
std::string_view strip(std::string_view text, Side side = Side::both, const std::string_view* set = nullptr);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

}  // namespace nibble::jinja
