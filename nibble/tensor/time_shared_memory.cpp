#include "tensor/time_shared_memory.h"

#include <algorithm>

namespace nibble {

TimeSharedPart::TimeSharedPart(std::shared_ptr<TimeSharedMemory> memory, std::string user, int64_t bytes)
    : memory_(std::move(memory)), place_(memory_.get(), Leave{std::move(user)}), bytes_(bytes) {}

std::byte* TimeSharedPart::base() const { return memory_->base_; }

Status TimeSharedPart::check() const { return memory_->check(place_.get_deleter().user); }

void TimeSharedPart::Leave::operator()(TimeSharedMemory* memory) const { std::erase(memory->users_, user); }

std::shared_ptr<TimeSharedMemory> TimeSharedMemory::create(std::byte* base, int64_t bytes, std::shared_ptr<void> owner,
                                                           std::string first) {
    return std::shared_ptr<TimeSharedMemory>(new TimeSharedMemory(base, bytes, std::move(owner), std::move(first)));
}

Result<TimeSharedPart> TimeSharedMemory::join(std::string user, int64_t bytes) {
    if (bytes > bytes_) return fail("{} wants {} bytes of memory in turn; there are {}", user, bytes, bytes_);
    if (std::ranges::count(users_, user)) return fail("{} has its part of the memory already", user);
    users_.push_back(user);
    return TimeSharedPart(shared_from_this(), std::move(user), bytes);
}

Status TimeSharedMemory::check(std::string_view user) const {
    if (turn_ == user) return Ok{};
    return fail("memory in turn: {} would compute in it, the turn is that of {}", user, turn_);
}

Status TimeSharedMemory::give_turn(std::string_view user) {
    if (!std::ranges::count(users_, user)) return fail("memory in turn: there is no user {}", user);
    turn_ = user;
    return Ok{};
}

}  // namespace nibble
