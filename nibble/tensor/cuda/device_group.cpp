#include "tensor/device_group.h"

#include "tensor/cuda/call.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace nibble {
namespace {

// What is used of NCCL 2 (nccl.h): a communicator is a pointer, results are numbers, 0 for success, 7 for "in
// progress"; data type 0 is bytes.
struct NcclId {
    char bytes[128];
};
constexpr int nccl_success = 0, nccl_bytes = 0;

struct Nccl {
    void* library = nullptr;
    int (*get_id)(NcclId*) = nullptr;
    int (*init)(void**, int, NcclId, int) = nullptr;
    int (*destroy)(void*) = nullptr;
    int (*abort)(void*) = nullptr;
    int (*send)(const void*, size_t, int, int, void*, cudaStream_t) = nullptr;
    int (*receive)(void*, size_t, int, int, void*, cudaStream_t) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    int (*async_error)(void*, int*) = nullptr;
    const char* (*text)(int) = nullptr;

    Status status(int code, std::string_view call) const {
        if (code == nccl_success) return Ok{};
        return fail("{}: {}", call, text(code));
    }
};

Result<Nccl> load() {
    Nccl n;
    for (const char* name : {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"})
        if ((n.library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!n.library) return fail("several GPUs need NCCL: {}", ::dlerror());
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(n.library, name));
        all = all && function;
    };
    find(n.get_id, "ncclGetUniqueId");
    find(n.init, "ncclCommInitRank");
    find(n.destroy, "ncclCommDestroy");
    find(n.abort, "ncclCommAbort");
    find(n.send, "ncclSend");
    find(n.receive, "ncclRecv");
    find(n.group_start, "ncclGroupStart");
    find(n.group_end, "ncclGroupEnd");
    find(n.async_error, "ncclCommGetAsyncError");
    find(n.text, "ncclGetErrorString");
    if (!all) return fail("libnccl.so.2 lacks functions that nibble calls");
    return n;
}

// Opened once, never closed: NCCL has threads of its own.
const Result<Nccl>& nccl() {
    static const Result<Nccl> loaded = load();
    return loaded;
}

}  // namespace

Result<DeviceGroup::Id> DeviceGroup::make_id() {
    NIBBLE_TRY(const Nccl n, nccl());
    NcclId id;
    NIBBLE_CHECK(n.status(n.get_id(&id), "ncclGetUniqueId"));
    const auto* bytes = reinterpret_cast<const std::byte*>(id.bytes);
    return Id(bytes, bytes + sizeof id.bytes);
}

Result<DeviceGroup> DeviceGroup::create(const Id& id, int rank, int size, int device) {
    NIBBLE_TRY(const Nccl n, nccl());
    NcclId raw;
    if (id.size() != sizeof raw.bytes) return fail("an NCCL id of {} bytes", id.size());
    std::memcpy(raw.bytes, id.data(), sizeof raw.bytes);
    const CurrentDevice current(device);
    NIBBLE_CHECK(current.status());
    void* communicator = nullptr;
    NIBBLE_CHECK(n.status(n.init(&communicator, size, raw, rank), "ncclCommInitRank"));
    return DeviceGroup(communicator, rank, size);
}

void DeviceGroup::Close::operator()(void* communicator) const {
    if (communicator) nccl()->destroy(communicator);
}

Status DeviceGroup::exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream) const {
    NIBBLE_TRY(const Nccl n, nccl());
    auto* queue = static_cast<cudaStream_t>(stream.handle());
    NIBBLE_CHECK(n.status(n.group_start(), "ncclGroupStart"));
    Status done = Ok{};
    for (const Part& p : send)
        if (done.ok() && p.bytes > 0)
            done =
                n.status(n.send(p.data, static_cast<size_t>(p.bytes), nccl_bytes, p.rank, communicator_.get(), queue),
                         "ncclSend");
    for (const Part& p : receive)
        if (done.ok() && p.bytes > 0)
            done = n.status(
                n.receive(p.data, static_cast<size_t>(p.bytes), nccl_bytes, p.rank, communicator_.get(), queue),
                "ncclRecv");
    const Status ended = n.status(n.group_end(), "ncclGroupEnd");
    return done.ok() ? ended : done;
}

Status DeviceGroup::wait(const Stream& stream, const std::function<Status()>& alive) const {
    NIBBLE_TRY(const Nccl n, nccl());
    auto* queue = static_cast<cudaStream_t>(stream.handle());
    using Clock = std::chrono::steady_clock;
    auto asked = Clock::now();
    while (true) {
        const cudaError_t code = cudaStreamQuery(queue);
        if (code == cudaSuccess) return Ok{};
        if (code != cudaErrorNotReady) return cuda_status(code, "cudaStreamQuery");
        const auto now = Clock::now();
        if (now - asked > std::chrono::milliseconds(200)) {
            asked = now;
            int error = nccl_success;
            Status lives = n.status(n.async_error(communicator_.get(), &error), "ncclCommGetAsyncError");
            if (lives.ok()) lives = n.status(error, "NCCL");
            if (lives.ok()) lives = alive();
            if (!lives.ok()) {
                n.abort(communicator_.get());  // kernels that wait for the other ranks end
                const_cast<DeviceGroup*>(this)->communicator_.release();
                return lives;
            }
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

}  // namespace nibble
