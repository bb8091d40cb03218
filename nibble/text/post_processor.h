// Post-processors of tokenizer.json for a single text: the tokens in front of it and behind it.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <vector>

namespace nibble {

struct PostProcessor {
    static constexpr size_t most_ids = 4096;  // on each side

    std::vector<uint32_t> before, after;

    // TemplateProcessing, ByteLevel (no effect on ids), Sequence; null: none. Errors: any other, by name; a template
    // without exactly one text.
    static Result<PostProcessor> parse(const Json& component, int depth = 0);
};

}  // namespace nibble
