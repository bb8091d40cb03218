// How a JSON schema is read (grammar/json_schema.h) and how its documents are written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// White space between the parts of a JSON document: none; or one space, or one or two line ends and up to 40 spaces and
// tabs. Unbounded white space would let a model answer with nothing else.
enum class JsonSpace : uint8_t { flexible, none };

struct SchemaOptions {
    JsonSpace space = JsonSpace::flexible;
    // Objects without "additionalProperties" take properties that are not listed, as JSON Schema says. False: where
    // "properties" lists some, they take those, "required" ones and those that "patternProperties" matches.
    bool open_objects = true;
};
// How schemas of requests are read: as xgrammar and llama.cpp do, OpenAI's "strict" or not.
inline constexpr SchemaOptions answer_schema{.open_objects = false};

// How an object is written whose members stand between tags, in the order of the schema: `name_begin` NAME `name_end`
// VALUE `value_end`. Whoever reads one takes a text as the string that it is; any other value is JSON, or the string
// that it is where it is no JSON; of members of one name the first.
struct TaggedObject {
    std::string name_begin, name_end, value_end;
    std::vector<std::string> closing;               // end a value wherever they stand outside of a JSON string
    std::map<std::string, bool, std::less<>> text;  // whether the values of a name are texts
    bool others_are_texts = true;                   // of names that `text` does not have

    bool is_text(std::string_view name) const {
        const auto found = text.find(name);
        return found == text.end() ? others_are_texts : found->second;
    }
};

}  // namespace nibble
