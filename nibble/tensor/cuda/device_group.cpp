#include "tensor/device_group.h"

#include "tensor/cuda/call.h"

#include <dlfcn.h>

#include <cstring>
#include <thread>

namespace nibble {
namespace {

// The part of NCCL 2's interface (nccl.h, from 2.14 on) in use. A communicator is a pointer; data type 0 is bytes, 7 is
// FP32.
constexpr int nccl_success = 0, nccl_in_progress = 7, nccl_bytes = 0, nccl_floats = 7, nccl_sum = 0;

struct NcclId {
    char bytes[128];
};

// The beginning of ncclConfig_t. NCCL uses defaults for the fields after `size` bytes.
struct NcclConfig {
    size_t size = sizeof(NcclConfig);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;  // NCCL_VERSION(2, 14, 0)
    int blocking = 0;
};

struct Nccl {
    void* library = nullptr;
    int (*get_id)(NcclId*) = nullptr;
    int (*init)(void**, int, NcclId, int, NcclConfig*) = nullptr;
    int (*abort)(void*) = nullptr;
    int (*send)(const void*, size_t, int, int, void*, cudaStream_t) = nullptr;
    int (*receive)(void*, size_t, int, int, void*, cudaStream_t) = nullptr;
    int (*reduce)(const void*, void*, size_t, int, int, int, void*, cudaStream_t) = nullptr;
    int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    int (*async_error)(void*, int*) = nullptr;
    const char* (*text)(int) = nullptr;
    const char* (*last)(void*) = nullptr;

    Status status(int code, std::string_view call) const {
        if (code == nccl_success || code == nccl_in_progress) return Ok{};
        const std::string_view more = last(nullptr);
        return fail(ErrorKind::device, "{}: {}{}{}", call, text(code), more.empty() ? "" : ": ", more);
    }
};

Result<Nccl> load() {
    Nccl n;
    for (const char* name : {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"})
        if ((n.library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!n.library) return fail(ErrorKind::device, "several GPUs need NCCL 2.14 or newer: {}", ::dlerror());
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(n.library, name));
        if (!function) missing = name;
    };
    find(n.get_id, "ncclGetUniqueId");
    find(n.init, "ncclCommInitRankConfig");
    find(n.abort, "ncclCommAbort");
    find(n.send, "ncclSend");
    find(n.receive, "ncclRecv");
    find(n.reduce, "ncclReduce");
    find(n.all_reduce, "ncclAllReduce");
    find(n.group_start, "ncclGroupStart");
    find(n.group_end, "ncclGroupEnd");
    find(n.async_error, "ncclCommGetAsyncError");
    find(n.text, "ncclGetErrorString");
    find(n.last, "ncclGetLastError");
    if (missing)
        return fail(ErrorKind::device, "libnccl.so.2 has no {}: several GPUs need NCCL 2.14 or newer", missing);
    return n;
}

// NCCL is opened once and never closed, because it has its own threads.
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

Result<DeviceGroup> DeviceGroup::create(const Id& id, int rank, int size, int device, Alive alive) {
    NIBBLE_TRY(const Nccl n, nccl());
    NcclId raw;
    if (id.size() != sizeof raw.bytes) return fail(ErrorKind::device, "an NCCL id of {} bytes", id.size());
    std::memcpy(raw.bytes, id.data(), sizeof raw.bytes);
    const CurrentDevice current(device);
    NIBBLE_CHECK(current.status());
    DeviceGroup group;
    group.alive_ = std::move(alive);
    void* communicator = nullptr;
    NcclConfig config;
    const int code = n.init(&communicator, size, raw, rank, &config);
    group.communicator_.reset(communicator);
    NIBBLE_CHECK(n.status(code, "ncclCommInitRankConfig"));
    NIBBLE_CHECK(group.settle(code, "ncclCommInitRankConfig"));
    return group;
}

DeviceGroup DeviceGroup::over(Exchange exchange) {
    DeviceGroup group;
    group.exchange_ = std::move(exchange);
    return group;
}

// A group that ends without a failure has nothing queued. After a failure, abort() ends the waiting calls.
void DeviceGroup::Close::operator()(void* communicator) const {
    if (communicator) nccl()->abort(communicator);
}

Status DeviceGroup::give_up(Status why) {
    communicator_.reset();
    return why;
}

// Waits until NCCL has finished an asynchronous call.
Status DeviceGroup::settle(int code, std::string_view call) {
    NIBBLE_TRY(const Nccl n, nccl());
    const auto begin = std::chrono::steady_clock::now();
    for (auto asked = begin; code == nccl_in_progress;) {
        const int answer = n.async_error(communicator_.get(), &code);
        if (answer != nccl_success)
            return give_up(fail(ErrorKind::device, "{}: ncclCommGetAsyncError: {}", call, n.text(answer)));
        const auto now = std::chrono::steady_clock::now();
        if (code != nccl_in_progress || now - asked < std::chrono::milliseconds(200)) continue;
        asked = now;
        if (Status lives = alive_(); !lives.ok()) return give_up(std::move(lives));
        if (now - begin > patience)
            return give_up(fail(ErrorKind::device, "{}: no result within {} minutes", call, patience.count()));
    }
    Status done = n.status(code, call);
    return done.ok() ? done : give_up(std::move(done));
}

Status DeviceGroup::exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream) {
    if (exchange_) return exchange_(send, receive, stream);
    NIBBLE_TRY(const Nccl n, nccl());
    auto* queue = static_cast<cudaStream_t>(stream.handle());
    return together([&]() -> Status {
        for (const Part& p : send)
            if (p.bytes > 0)
                NIBBLE_CHECK(n.status(
                    n.send(p.data, static_cast<size_t>(p.bytes), nccl_bytes, p.rank, communicator_.get(), queue),
                    "ncclSend"));
        for (const Part& p : receive)
            if (p.bytes > 0)
                NIBBLE_CHECK(n.status(
                    n.receive(p.data, static_cast<size_t>(p.bytes), nccl_bytes, p.rank, communicator_.get(), queue),
                    "ncclRecv"));
        return Ok{};
    });
}

Status DeviceGroup::add(std::span<const Sum> sums, const Stream& stream) {
    if (exchange_) return fail(ErrorKind::device, "sums in any order need NCCL");
    NIBBLE_TRY(const Nccl n, nccl());
    auto* queue = static_cast<cudaStream_t>(stream.handle());
    return together([&]() -> Status {
        for (const Sum& s : sums) {
            if (s.count == 0) continue;
            const auto count = static_cast<size_t>(s.count);
            NIBBLE_CHECK(s.rank < 0 ? n.status(n.all_reduce(s.data, s.data, count, nccl_floats, nccl_sum,
                                                            communicator_.get(), queue),
                                               "ncclAllReduce")
                                    : n.status(n.reduce(s.data, s.data, count, nccl_floats, nccl_sum, s.rank,
                                                        communicator_.get(), queue),
                                               "ncclReduce"));
        }
        return Ok{};
    });
}

// Issues NCCL calls as one group, so that they start together.
Status DeviceGroup::together(const std::function<Status()>& calls) {
    NIBBLE_TRY(const Nccl n, nccl());
    if (!communicator_) return fail(ErrorKind::device, "NCCL: closed after an earlier failure");
    NIBBLE_CHECK(n.status(n.group_start(), "ncclGroupStart"));
    Status done = calls();
    const int ended = n.group_end();
    if (!done.ok()) return give_up(std::move(done));
    return settle(ended, "ncclGroupEnd");
}

Status DeviceGroup::wait(const Stream& stream) {
    if (exchange_) return stream.synchronize();
    auto* queue = static_cast<cudaStream_t>(stream.handle());
    return wait_for([queue]() -> Result<bool> {
        const cudaError_t code = cudaStreamQuery(queue);
        if (code == cudaErrorNotReady) return false;
        NIBBLE_CHECK(cuda_status(code, "cudaStreamQuery"));
        return true;
    });
}

Status DeviceGroup::wait(const Event& event) {
    if (exchange_) return event.synchronize();
    return wait_for([&] { return event.happened(); });
}

Status DeviceGroup::wait_for(const std::function<Result<bool>()>& done) {
    NIBBLE_TRY(const Nccl n, nccl());
    if (!communicator_) return fail(ErrorKind::device, "NCCL: closed after an earlier failure");
    const auto begin = std::chrono::steady_clock::now();
    for (auto asked = begin;;) {
        const Result<bool> there = done();
        if (!there.ok()) return give_up(there.error());
        if (*there) return Ok{};
        const auto now = std::chrono::steady_clock::now();
        if (now - asked > std::chrono::milliseconds(200)) {
            asked = now;
            int error = nccl_success;
            Status lives = n.status(n.async_error(communicator_.get(), &error), "ncclCommGetAsyncError");
            if (lives.ok()) lives = n.status(error, "NCCL");
            // An error of another rank takes precedence: it causes the NCCL error.
            if (Status others = alive_(); !others.ok()) lives = std::move(others);
            if (lives.ok() && now - begin > patience)
                lives = fail(ErrorKind::device, "a step has waited for other GPUs for {} minutes", patience.count());
            if (!lives.ok()) return give_up(std::move(lives));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

}  // namespace nibble
