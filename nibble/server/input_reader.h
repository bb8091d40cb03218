// Extracts the text of a custom tool's call: the model writes {"input": TEXT}, the client gets TEXT, piece by piece.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

class InputReader {
public:
    // Returns the text that a piece of the arguments adds. Arguments that are not an object with one text are returned
    // unchanged.
    std::string push(std::string_view piece);

private:
    enum class Place { head, text, end, raw };
    bool read_head();
    std::string pending_;
    Place place_ = Place::head;
};

}  // namespace nibble
