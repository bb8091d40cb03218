// GPUs of several processes, one each, and what they hand to one another without the host: NCCL, opened at run time
// (libnccl.so.2), so that a program without it runs on one GPU.
//
// All ranks queue the same calls in the same order. Work waits on the device for the other ranks; NCCL's own set-up
// waits for them on the host. Both ask meanwhile whether the others live, so that one that is gone ends the wait.
#pragma once

#include "tensor/device.h"

#include <chrono>
#include <functional>
#include <span>

namespace nibble {

class DeviceGroup {
public:
    using Id = std::vector<std::byte>;
    // Its error ends a wait and is what the wait returns.
    using Alive = std::function<Status()>;

    // Made by one rank, given to all. Error: no NCCL.
    static Result<Id> make_id();
    // All ranks together; waits for them.
    static Result<DeviceGroup> create(const Id& id, int rank, int size, int device, Alive alive);

    struct Part {
        int rank = 0;  // to or from
        std::byte* data = nullptr;
        int64_t bytes = 0;
    };
    // What takes NCCL's place in exchange(); wait() then waits for the stream alone.
    using Exchange =
        std::function<Status(std::span<const Part> send, std::span<const Part> receive, const Stream& stream)>;
    static DeviceGroup over(Exchange exchange);
    // All of it at once; what one rank sends to another, that one receives with as many bytes.
    Status exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream);
    struct Sum {
        int rank = -1;  // who gets it; -1: all
        float* data = nullptr;
        int64_t count = 0;
    };
    // What the ranks have there, added by NCCL in an order of its own, in its place. Others are left with anything.
    Status add(std::span<const Sum> sums, const Stream& stream);
    // Until the stream has done what was queued, for at most `patience`. After an error nothing more can be exchanged.
    Status wait(const Stream& stream);
    Status wait(const Event& event);  // the same of a point in it

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
