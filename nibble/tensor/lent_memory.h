// Memory that several users have in turn, each all of it: by plan, not by free lists, so nothing fragments and nothing
// is allocated while turns change. What one user left in it is lost when the turn is another's. Addresses never change:
// a user may lay out its part once and keep pointers, and checks before it computes that the turn is its own; memory of
// another's turn would be read without any error.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class LentMemory;

// A user's part, from the base of the memory on. It ends with this; the memory lives at least as long.
class MemoryLoan {
public:
    MemoryLoan(MemoryLoan&&) = default;
    MemoryLoan& operator=(MemoryLoan&&) = default;

    std::byte* base() const;
    int64_t bytes() const { return bytes_; }
    // LentMemory::check() of this user.
    Status check() const;

private:
    friend class LentMemory;
    struct Leave {
        std::string user;
        void operator()(LentMemory* memory) const;
    };
    MemoryLoan(std::shared_ptr<LentMemory> memory, std::string user, int64_t bytes);
    std::shared_ptr<LentMemory> memory_;
    std::unique_ptr<LentMemory, Leave> place_;  // ends before the memory
    int64_t bytes_ = 0;
};

class LentMemory : public std::enable_shared_from_this<LentMemory> {
public:
    // `bytes` from `base` on, which `owner` keeps. The first turn is `first`'s, who may join later.
    static std::shared_ptr<LentMemory> create(std::byte* base, int64_t bytes, std::shared_ptr<void> owner,
                                              std::string first);

    // Error: more than there is; this user has a part already.
    Result<MemoryLoan> join(std::string user, int64_t bytes);
    // Error: the turn is another's; says whose.
    Status check(std::string_view user) const;
    // From now on. The caller has seen to it that the work of the last user is over. Error: nobody of that name.
    Status give_turn(std::string_view user);
    const std::string& turn() const { return turn_; }

    std::byte* base() const { return base_; }
    int64_t bytes() const { return bytes_; }

private:
    friend class MemoryLoan;
    LentMemory(std::byte* base, int64_t bytes, std::shared_ptr<void> owner, std::string first)
        : base_(base), bytes_(bytes), owner_(std::move(owner)), turn_(std::move(first)) {}

    std::byte* base_;
    int64_t bytes_;
    std::shared_ptr<void> owner_;
    std::string turn_;
    std::vector<std::string> users_;
};

}  // namespace nibble
