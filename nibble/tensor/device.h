// GPUs as the rest of the program sees them: no CUDA type appears here. tensor/cuda/ implements this header. A build
// without CUDA implements only list_devices(), open_device(), device_memory() and limit_device_memory(), which return
// an error (nibble/no_device.cpp); GPU code, which calls the rest, is not part of it.
//
// Handles own what they name and are moved, never copied. Errors name the CUDA call that failed and the driver's
// reason. Nothing here allocates or waits except where the comment says so, so that a hot path can be read off its
// calls.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct DeviceInfo {
    int index = 0;
    std::string name;          // "NVIDIA H200"
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    int64_t memory_bytes = 0;  // of the card
    int64_t l2_bytes = 0;
    std::string uuid;  // of the card, 32 hexadecimal digits: the same in all processes
};

// Every GPU the driver shows. Error: no driver, no usable GPU, no CUDA in this build.
Result<std::vector<DeviceInfo>> list_devices();

// What --device says: "cpu", "cuda" (the first GPU) or "cuda:N".
struct DeviceChoice {
    bool cuda = false;
    int index = 0;
    bool operator==(const DeviceChoice&) const = default;
};
Result<DeviceChoice> parse_device(std::string_view text);  // syntax only
// The GPU of a choice with cuda = true. One line that lists what is there when it cannot be used; kernels are built for
// compute capability 9.0 (sm_90a).
Result<DeviceInfo> open_device(const DeviceChoice& choice);

// Bytes of device memory, in all and free for arenas of this process. Makes the device's context, which takes a moment.
struct DeviceMemory {
    int64_t free = 0, total = 0;
};
Result<DeviceMemory> device_memory(int device);
// From now on the arenas of this process may hold `share` of the device's memory, a number in (0, 1], together, so that
// processes which start beside each other find what they planned with.
Status limit_device_memory(int device, double share);

// The calling thread's kernels run on `device` from now on; threads that launch into streams of a device other than 0
// need it. Cheap when it is so already.
Status use_device(int device);

// An ordered queue of work on one device.
class Stream {
public:
    enum class Priority : uint8_t { normal, high };  // high: its kernels are the next to start where there is room
    static Result<Stream> create(int device, Priority priority = Priority::normal);

    void* handle() const { return handle_.get(); }  // cudaStream_t
    int device() const { return handle_.get_deleter().device; }
    // Waits until everything queued is done; reports faults of kernels that ran.
    Status synchronize() const;

private:
    struct Destroy {
        int device = 0;
        void operator()(void* handle) const;
    };
    Stream(void* handle, int device) : handle_(handle, Destroy{device}) {}
    std::unique_ptr<void, Destroy> handle_;
};

// A point in a stream; the difference of two is GPU time.
class Event {
public:
    static Result<Event> create();
    // For waiting only: the thread that synchronizes sleeps instead of watching, and no time is kept.
    static Result<Event> create_sleeping();
    Status record(const Stream& stream);
    Status synchronize() const;  // waits
    Result<bool> happened() const;
    Status make_wait(const Stream& stream);  // `stream` waits for the event, the caller does not
    // Milliseconds from `begin` to this event; both must have happened.
    Result<float> since(const Event& begin) const;

private:
    struct Destroy {
        void operator()(void* handle) const;
    };
    explicit Event(void* handle) : handle_(handle) {}
    std::unique_ptr<void, Destroy> handle_;
};

// Work that was queued once, to be queued again in one call. Kernels see the same arguments; what they point to may
// have changed.
class Graph {
public:
    // Runs `queue`, whose work goes to `stream`, without executing it.
    static Result<Graph> capture(const Stream& stream, const std::function<Status()>& queue);
    Status launch(const Stream& stream) const;

private:
    struct Destroy {
        void operator()(void* handle) const;
    };
    explicit Graph(void* handle) : handle_(handle) {}
    std::unique_ptr<void, Destroy> handle_;
};

// All device memory of a job: one allocation at the start, handed out upwards and given back by mark. The arena does
// not know about streams: memory above a mark may be handed out again as soon as the mark is released, so release after
// the stream that used it has been synchronized, or use the memory in one stream only.
class DeviceArena {
public:
    static constexpr int64_t alignment = 256;

    // Allocates; the only place that does. Error: not free, or beyond limit_device_memory().
    static Result<DeviceArena> create(int device, int64_t bytes);

    // Uninitialised. Error when it does not fit: says how much was asked for and how much is left.
    Result<std::byte*> allocate(int64_t bytes);
    template <class T>
    Result<T*> allocate_array(int64_t count) {
        NIBBLE_TRY(std::byte * p, allocate(count * int64_t{sizeof(T)}));
        return reinterpret_cast<T*>(p);
    }

    using Mark = int64_t;
    Mark mark() const { return used_; }
    void release(Mark mark) { used_ = mark; }  // everything allocated after `mark`

    int64_t capacity() const { return capacity_; }
    int64_t used() const { return used_; }

private:
    struct Free {
        int device = 0;
        int64_t bytes = 0;
        void operator()(std::byte* p) const;
    };
    DeviceArena(std::byte* base, int device, int64_t bytes) : base_(base, Free{device, bytes}), capacity_(bytes) {}
    std::unique_ptr<std::byte, Free> base_;
    int64_t capacity_ = 0, used_ = 0;
};

// Page-locked host memory: copies to and from it overlap with kernels.
class PinnedBuffer {
public:
    static Result<PinnedBuffer> create(int64_t bytes);  // allocates
    std::byte* data() const { return data_.get(); }
    int64_t size() const { return size_; }

private:
    struct Free {
        void operator()(std::byte* p) const;
    };
    PinnedBuffer(std::byte* data, int64_t size) : data_(data), size_(size) {}
    std::unique_ptr<std::byte, Free> data_;
    int64_t size_ = 0;
};

// Queue a copy or a fill. Asynchronous for pinned host memory; the driver stages pageable memory and may wait.
Status copy_to_device(std::byte* device, const std::byte* host, int64_t bytes, const Stream& stream);
Status copy_to_host(std::byte* host, const std::byte* device, int64_t bytes, const Stream& stream);
Status copy_on_device(std::byte* to, const std::byte* from, int64_t bytes, const Stream& stream);
Status fill_device(std::byte* device, uint8_t value, int64_t bytes, const Stream& stream);

}  // namespace nibble
