// Direct transfers between the GPUs of several processes (one GPU each), through NCCL. NCCL (libnccl.so.2) is opened at
// run time, so a program without it runs on one GPU.
//
// All ranks queue the same calls in the same order. Queued work waits for other ranks on the device; NCCL's set-up
// waits on the host. Host-side waits check regularly that the other ranks are alive and fail if one is not.
#pragma once

#include "tensor/device.h"

#include <chrono>
#include <functional>
#include <span>

namespace nibble {

class DeviceGroup {
public:
    using Id = std::vector<std::byte>;
    // Checks the other ranks. An error ends the current wait and becomes its result.
    using Alive = std::function<Status()>;

    // Creates an id on one rank; pass it to all ranks. Error: no NCCL.
    static Result<Id> make_id();
    // Called by all ranks; waits until all have joined.
    static Result<DeviceGroup> create(const Id& id, int rank, int size, int device, Alive alive);

    struct Part {
        int rank = 0;  // the peer that receives or sends
        std::byte* data = nullptr;
        int64_t bytes = 0;
    };
    // Transfers the parts of exchange() in place of NCCL. wait() of a group with such a function waits for the stream
    // only.
    using Exchange =
        std::function<Status(std::span<const Part> send, std::span<const Part> receive, const Stream& stream)>;
    static DeviceGroup over(Exchange exchange);
    // Starts all transfers at once. Sender and receiver must pass the same number of bytes.
    Status exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream);
    struct Sum {
        int rank = -1;  // the rank that receives the sum; -1: all ranks
        float* data = nullptr;
        int64_t count = 0;
    };
    // Replaces `data` on the receiving ranks with the sum over all ranks, in NCCL's order of addition. On other ranks
    // `data` is undefined afterwards.
    Status add(std::span<const Sum> sums, const Stream& stream);
    // Waits until the stream has finished its queued work, at most `patience`. After an error the group cannot be used.
    Status wait(const Stream& stream);
    Status wait(const Event& event);  // waits for an event only

    static constexpr std::chrono::minutes patience{30};

private:
    struct Close {
        void operator()(void* communicator) const;
    };
    Status together(const std::function<Status()>& calls);
    Status wait_for(const std::function<Result<bool>()>& done);
    Status settle(int code, std::string_view call);
    Status give_up(Status why);

    std::unique_ptr<void, Close> communicator_;  // ncclComm_t
    Alive alive_;
    Exchange exchange_;
};

}  // namespace nibble
