// Options for reading a JSON schema (grammar/json_schema.h), and the encoding of its documents.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// White space between the parts of a JSON document. none: no white space. flexible: one space, or one or two line ends
// with up to 40 spaces and tabs. The bound prevents answers that consist of white space only.
enum class JsonSpace : uint8_t { flexible, none };

struct SchemaOptions {
    JsonSpace space = JsonSpace::flexible;
    // True: objects without "additionalProperties" accept unlisted properties, as JSON Schema defines. False: an object
    // that lists "properties" accepts only those, "required" ones and matches of "patternProperties".
    bool open_objects = true;
};
// Options for schemas of requests: like xgrammar, llama.cpp and OpenAI, with or without "strict".
inline constexpr SchemaOptions answer_schema{.open_objects = false};

// Notation of values that is not JSON's: words of the constants, and `quote` around strings, which are then literal
// text without that quote; empty: strings of JSON. bare_keys: names in objects have no quotes.
struct ValueNotation {
    std::string yes = "true", no = "false", null = "null";
    std::string quote;
    bool bare_keys = false;
};

// Encodes an object as members between tags in the order of the schema: `name_begin` NAME `name_end` VALUE `value_end`.
// A reader takes a text value literally. Any other value is JSON, or a string if it is not valid JSON. The first of
// several members with one name counts.
struct TaggedObject {
    std::string name_begin, name_end, value_end;
    std::string text_name_end;    // not empty: replaces name_end before every string, and all other values are JSON
    std::string between;          // between members
    bool no_plain_texts = false;  // strings, too, are in the notation of values
    ValueNotation notation;
    std::vector<std::string> closing;                // each ends a value unless it occurs inside a JSON string
    std::map<std::string, bool, std::less<>> text;   // by name: whether the value is literal text
    std::set<std::string, std::less<>> never_texts;  // names whose "type" excludes strings; a reader also takes
                                                     // literals of Python, as templates write such values
    bool others_are_texts = true;                    // for names that `text` does not list

    bool is_text(std::string_view name) const {
        const auto found = text.find(name);
        return found == text.end() ? others_are_texts : found->second;
    }
};

}  // namespace nibble
