// GPUs without any CUDA type in the interface. tensor/cuda/ implements this header. A build without CUDA implements
// only list_devices(), open_device(), device_memory() and limit_device_memory(), which return an error
// (nibble/no_device.cpp). It does not contain the GPU code that calls the other functions.
//
// Handles own their resource and can be moved, not copied. Errors name the CUDA call that failed and the driver's
// reason. A function allocates or waits only if its comment states it.
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
    int64_t memory_bytes = 0;  // capacity of the card
    int64_t l2_bytes = 0;
    std::string uuid;  // 32 hexadecimal digits that identify the card; equal in all processes
};

// Lists all GPUs that the driver reports. Errors: no driver, no usable GPU, no CUDA in this build.
Result<std::vector<DeviceInfo>> list_devices();

// The value of --device: "cpu", "cuda" (the first GPU) or "cuda:N".
struct DeviceChoice {
    bool cuda = false;
    int index = 0;
    bool operator==(const DeviceChoice&) const = default;
};
Result<DeviceChoice> parse_device(std::string_view text);  // checks the syntax only
// Returns the GPU of a choice with cuda = true. Error: the GPU cannot be used; the message lists the GPUs present.
// Kernels are built for compute capability 9.0 (sm_90a).
Result<DeviceInfo> open_device(const DeviceChoice& choice);

// Bytes of device memory: total, and free for arenas of this process. Creates the device's context, which takes a
// moment.
struct DeviceMemory {
    int64_t free = 0, total = 0;
};
Result<DeviceMemory> device_memory(int device);
// Limits the arenas of this process, in total, to `share` of the device's memory, a number in (0, 1]. Processes that
// start at the same time can then plan with their own share.
Status limit_device_memory(int device, double share);

// Makes `device` the current device of the calling thread. Needed before a launch into a stream of a device other than
// 0. Cheap if nothing changes.
Status use_device(int device);

// An ordered queue of work on one device.
class Stream {
public:
    enum class Priority : uint8_t { normal, high };  // high: its kernels start before those of normal streams
    static Result<Stream> create(int device, Priority priority = Priority::normal);

    void* handle() const { return handle_.get(); }  // cudaStream_t
    int device() const { return handle_.get_deleter().device; }
    // Waits until all queued work is done. Returns faults of its kernels.
    Status synchronize() const;

private:
    struct Destroy {
        int device = 0;
        void operator()(void* handle) const;
    };
    Stream(void* handle, int device) : handle_(handle, Destroy{device}) {}
    std::unique_ptr<void, Destroy> handle_;
};

// A point in a stream. The difference of two events is GPU time.
class Event {
public:
    static Result<Event> create();
    // Creates an event for waiting only: the synchronizing thread sleeps instead of polling, and no time is recorded.
    static Result<Event> create_sleeping();
    Status record(const Stream& stream);
    Status synchronize() const;  // waits
    Result<bool> happened() const;
    Status make_wait(const Stream& stream);  // makes `stream` wait for the event; returns at once
    // Returns the milliseconds from `begin` to this event. Both must have happened.
    Result<float> since(const Event& begin) const;

private:
    struct Destroy {
        void operator()(void* handle) const;
    };
    explicit Event(void* handle) : handle_(handle) {}
    std::unique_ptr<void, Destroy> handle_;
};

// Work recorded once and launched in one call. Kernels get the recorded arguments; the memory that pointers refer to
// may change between launches.
class Graph {
public:
    // Records what `queue` submits to `stream`, without executing it.
    static Result<Graph> capture(const Stream& stream, const std::function<Status()>& queue);
    Status launch(const Stream& stream) const;

private:
    struct Destroy {
        void operator()(void* handle) const;
    };
    explicit Graph(void* handle) : handle_(handle) {}
    std::unique_ptr<void, Destroy> handle_;
};

// All device memory of a job: allocated once, handed out upwards and released down to a mark. The arena does not know
// about streams. Memory above a released mark may be handed out at once, so release only after the stream that used it
// was synchronized, or use the memory in one stream only.
class DeviceArena {
public:
    static constexpr int64_t alignment = 256;

    // The only function that allocates. Errors: not enough free memory, limit_device_memory() exceeded.
    static Result<DeviceArena> create(int device, int64_t bytes);

    // Returns uninitialised memory. Error: it does not fit; the message states the requested and the free bytes.
    Result<std::byte*> allocate(int64_t bytes);
    template <class T>
    Result<T*> allocate_array(int64_t count) {
        NIBBLE_TRY(std::byte * p, allocate(count * int64_t{sizeof(T)}));
        return reinterpret_cast<T*>(p);
    }

    using Mark = int64_t;
    Mark mark() const { return used_; }
    void release(Mark mark) { used_ = mark; }  // frees all allocations after `mark`

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

// Page-locked host memory. Copies to and from it overlap with kernels.
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

// Queue a copy or a fill. Asynchronous for pinned host memory. The driver stages pageable memory and may wait.
Status copy_to_device(std::byte* device, const std::byte* host, int64_t bytes, const Stream& stream);
Status copy_to_host(std::byte* host, const std::byte* device, int64_t bytes, const Stream& stream);
Status copy_on_device(std::byte* to, const std::byte* from, int64_t bytes, const Stream& stream);
Status fill_device(std::byte* device, uint8_t value, int64_t bytes, const Stream& stream);

}  // namespace nibble
