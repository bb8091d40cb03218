// GPUs of several processes, one each, and what they hand to one another without the host: NCCL, opened at run time
// (libnccl.so.2), so that a program without it runs on one GPU.
//
// All ranks queue the same calls in the same order. Work waits on the device for the other ranks: whoever waits for
// the stream asks meanwhile whether they live (DeviceGroup::wait).
#pragma once

#include "tensor/device.h"

#include <functional>
#include <span>

namespace nibble {

class DeviceGroup {
public:
    using Id = std::vector<std::byte>;
    // Made by one rank, given to all. Error: no NCCL.
    static Result<Id> make_id();
    // All ranks together; waits for them.
    static Result<DeviceGroup> create(const Id& id, int rank, int size, int device);

    int rank() const { return rank_; }
    int size() const { return size_; }

    struct Part {
        int rank = 0;  // to or from
        std::byte* data = nullptr;
        int64_t bytes = 0;
    };
    // All of it at once; what one rank sends to another, that one receives with as many bytes.
    Status exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream) const;

    // Until the stream has done what was queued. `alive` is asked meanwhile; when it fails, what is queued is given up
    // and its error returned.
    Status wait(const Stream& stream, const std::function<Status()>& alive) const;

private:
    struct Close {
        void operator()(void* communicator) const;
    };
    DeviceGroup(void* communicator, int rank, int size) : communicator_(communicator), rank_(rank), size_(size) {}
    std::unique_ptr<void, Close> communicator_;  // ncclComm_t
    int rank_ = 0, size_ = 1;
};

}  // namespace nibble
