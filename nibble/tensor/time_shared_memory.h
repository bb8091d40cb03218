// One block of memory that several users share by taking turns; each user may then use all of it. A fixed plan replaces
// free lists: nothing fragments and changing turns allocates nothing. Contents are lost when the turn passes to another
// user. Addresses never change, so a user may lay out its part once and keep pointers. It must check() before it
// computes; reading memory during another user's turn is not detected.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class TimeSharedMemory;

// A user's part, which starts at the base of the memory. Destroying the loan ends it. The memory lives at least as
// long.
class TimeSharedPart {
public:
    TimeSharedPart(TimeSharedPart&&) = default;
    TimeSharedPart& operator=(TimeSharedPart&&) = default;

    std::byte* base() const;
    int64_t bytes() const { return bytes_; }
    // Calls TimeSharedMemory::check() for this user.
    Status check() const;

private:
    friend class TimeSharedMemory;
    struct Leave {
        std::string user;
        void operator()(TimeSharedMemory* memory) const;
    };
    TimeSharedPart(std::shared_ptr<TimeSharedMemory> memory, std::string user, int64_t bytes);
    std::shared_ptr<TimeSharedMemory> memory_;
    std::unique_ptr<TimeSharedMemory, Leave> place_;  // ends before the memory
    int64_t bytes_ = 0;
};

class TimeSharedMemory : public std::enable_shared_from_this<TimeSharedMemory> {
public:
    // Wraps `bytes` bytes from `base`, kept alive by `owner`. The first turn belongs to `first`, who may join later.
    static std::shared_ptr<TimeSharedMemory> create(std::byte* base, int64_t bytes, std::shared_ptr<void> owner,
                                                    std::string first);

    // Errors: `bytes` exceeds the memory, the user has already joined.
    Result<TimeSharedPart> join(std::string user, int64_t bytes);
    // Fails if it is another user's turn, and names that user.
    Status check(std::string_view user) const;
    // Passes the turn to `user`. The caller ensures that the previous user's work has finished. Error: unknown user.
    Status give_turn(std::string_view user);
    const std::string& turn() const { return turn_; }

    std::byte* base() const { return base_; }
    int64_t bytes() const { return bytes_; }

private:
    friend class TimeSharedPart;
    TimeSharedMemory(std::byte* base, int64_t bytes, std::shared_ptr<void> owner, std::string first)
        : base_(base), bytes_(bytes), owner_(std::move(owner)), turn_(std::move(first)) {}

    std::byte* base_;
    int64_t bytes_;
    std::shared_ptr<void> owner_;
    std::string turn_;
    std::vector<std::string> users_;
};

}  // namespace nibble
