// Translates arguments that are not written as JSON into JSON, while their text arrives: Python's keyword arguments
// (LFM2) and objects with bare names (Gemma 4).
#pragma once

#include "chat/tool_format.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class LiteralReader {
public:
    explicit LiteralReader(const ArgumentNotation& notation) : notation_(notation) {}

    // Appends the JSON of what `text` determines and returns the number of its bytes that are read. In later calls
    // `text` begins with the bytes that were not read. `last`: no more text follows.
    size_t read(std::string_view text, bool last, std::string& json);
    bool ended() const { return ended_; }  // the arguments' closing bracket is read

private:
    enum class Place : uint8_t { name, value, string, after };
    size_t step(std::string_view text, bool last, std::string& json);
    size_t read_name(std::string_view text, std::string& json);
    size_t read_value(std::string_view text, bool last, std::string& json);
    size_t read_string(std::string_view text, bool last, std::string& json);
    size_t read_escape(std::string_view text, std::string& json) const;
    bool closes(std::string_view after, bool last, bool& known) const;
    size_t close(std::string& json);

    ArgumentNotation notation_;
    Place place_ = Place::name;
    std::string open_ = "{";      // JSON's brackets that are open; the first is the call's
    std::string_view delimiter_;  // ends the current string
    bool empty_ = true;           // nothing follows the last opening bracket
    bool ended_ = false;
};

}  // namespace nibble
