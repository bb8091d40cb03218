// Files that are part of the program (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace nibble {

struct EmbeddedFile {
    std::string_view path, content;
};

std::span<const EmbeddedFile> recipes_embedded();  // recipes/

}  // namespace nibble
