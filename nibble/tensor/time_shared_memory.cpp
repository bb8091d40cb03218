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
    if (bytes > bytes_) return fail("{} requests {} bytes of time-shared memory, which has {}", user, bytes, bytes_);
    if (std::ranges::count(users_, user)) return fail("{} has already joined the time-shared memory", user);
    users_.push_back(user);
    return TimeSharedPart(shared_from_this(), std::move(user), bytes);
}

Status TimeSharedMemory::check(std::string_view user) const {
    if (turn_ == user) return Ok{};
    return fail("time-shared memory: {} must not compute while it is the turn of {}", user, turn_);
}

Status TimeSharedMemory::give_turn(std::string_view user) {
    if (!std::ranges::count(users_, user)) return fail("time-shared memory: no user {}", user);
    turn_ = user;
    return Ok{};
}

}  // namespace nibble
