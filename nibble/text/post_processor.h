// Post-processors of tokenizer.json for a single text: the tokens before and after it.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <vector>

namespace nibble {

struct PostProcessor {
    static constexpr size_t most_ids = 4096;  // per side

    std::vector<uint32_t> before, after;

    // Supports TemplateProcessing, ByteLevel (no effect on ids) and Sequence; null adds nothing. Errors: any other
    // type, by name; a template that does not have exactly one text.
    static Result<PostProcessor> parse(const Json& component, int depth = 0);
};

}  // namespace nibble
