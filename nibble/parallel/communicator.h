// The ranks that run one model together, and what they exchange: copies of bytes. There are no sums here, because a sum
// over ranks would depend on their number. All ranks make the same calls in the same order.
//
// Rank 0 decides what is done and sends it as a record. The others wait for the next record and do the same.
//
// RankGroup connects processes by sockets, ThreadRanks the threads of one process.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

using RankBytes = std::vector<std::byte>;

// After an error every later call fails with it. Errors: a rank has ended, or makes another call; the message names it.
class Communicator {
public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    // Sends `own` to all other ranks and writes the bytes of rank r to of[r], which must have their size. of[rank()] is
    // not used.
    virtual Status gather_into(std::span<const std::byte> own, std::span<const std::span<std::byte>> of) = 0;
    // Rank 0: sends a record to the others. Does not wait for them.
    virtual Status send_record(std::span<const std::byte> record) = 0;
    // Other ranks: waits for the next record of rank 0, however long that takes.
    virtual Result<RankBytes> next_record() = 0;
    // Fails if a rank has ended. Does not wait. Call only between other calls.
    virtual Status alive() const = 0;
};

// Returns one communicator for each of `size` threads. A rank whose communicator is destroyed has ended.
std::vector<std::unique_ptr<Communicator>> thread_ranks(int size);

}  // namespace nibble
