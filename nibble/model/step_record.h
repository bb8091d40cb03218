// The decisions of rank 0, as the other ranks of a model receive them. They keep no sequences, and find keys, values
// and states in the pages with the same numbers as on rank 0.
#pragma once

#include "model/sequence.h"
#include "parallel/communicator.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// A write to the memory of a pool outside a step (model/state_memory.h).
struct PoolWrite {
    enum class Kind : uint8_t { zero_states, copy_page, copy_states, forget, drop } kind = Kind::forget;
    int32_t pool = 0, to = 0, from = 0;  // numbers of the pool, and of pages or states
};

struct StepRecord {
    // leave: nothing more is decided. drop: a model is not used any more.
    enum class Action : uint8_t { leave, load, drop, pool, forward, evaluate, predict } action = Action::leave;
    int64_t number = 0;               // number of the record
    int32_t model = 0;                // number of the model
    bool last_failed = false;         // the model's last step returned an error on rank 0
    std::vector<PoolWrite> writes{};  // before the action

    // Action::load: what is loaded, as the caller of DividedModel::load() writes it.
    std::string text{};

    // Action::pool: creates a pool.
    int32_t pool = 0;
    int64_t tokens = 0, sequences = 0;

    // Steps.
    struct Rows {
        int32_t pool = -1;  // -1: a whole text
        SequencePlaces places;
        std::vector<int32_t> tokens;
        int64_t logits_from = 0, position = -1;
    };
    std::vector<Rows> segments{};
    // Action::predict.
    bool again = false;
    std::vector<int32_t> rows{};
};

RankBytes encode(const StepRecord& record);
// Error: the bytes are not a record.
Result<StepRecord> decode_record(std::span<const std::byte> bytes);

}  // namespace nibble
