// The sizes of an engine: defaults of its options, and the memory of its cache.
#pragma once

#include "engine/engine.h"

namespace nibble {

struct EngineSize {
    EngineOptions options;  // with every 0 replaced
    // Sizes of the pool: tokens, recurrent states, and the states among them that the prefix cache keeps.
    int64_t tokens = 0, states = 0, state_copies = 0;
};

// Returns the sizes of an engine for `model`. Errors: an option out of range; draft layers that the model has not
// loaded; too little memory for one sequence of 64 tokens.
Result<EngineSize> engine_size(EngineOptions options, const LanguageModel& model);

// Returns the length of the longest text that fits in the pool alone, at most `most` tokens.
int64_t longest_text(const KvPool& pool, int64_t step_rows, int64_t most);

}  // namespace nibble
