#include "base/checked.h"
#include "tensor/cuda/call.h"
#include "tensor/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

namespace nibble {
namespace {

// Bytes that the arenas of this process hold on a device, and their limit. Global, as CUDA's devices are.
struct Budget {
    std::atomic<int64_t> held = 0, limit = std::numeric_limits<int64_t>::max();
};
std::array<Budget, 64> budgets;

Result<Budget*> budget_of(int device) {
    if (device < 0 || device >= std::ssize(budgets))
        return fail(ErrorKind::device, "device cuda:{}: no such device", device);
    return &budgets[static_cast<size_t>(device)];
}

}  // namespace

Result<DeviceMemory> device_memory(int device) {
    NIBBLE_TRY(const Budget* budget, budget_of(device));
    CurrentDevice current(device);
    NIBBLE_CHECK(current.status());
    size_t free = 0, total = 0;
    NIBBLE_CUDA_CALL(cudaMemGetInfo, &free, &total);
    const int64_t allowed = std::max<int64_t>(0, budget->limit - budget->held);
    return DeviceMemory{std::min(static_cast<int64_t>(free), allowed), static_cast<int64_t>(total)};
}

Status limit_device_memory(int device, double share) {
    if (!(share > 0 && share <= 1))
        return fail(ErrorKind::usage, "a share of {} of a device's memory is not in (0, 1]", share);
    NIBBLE_TRY(Budget * budget, budget_of(device));
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device));
    budget->limit = static_cast<int64_t>(share * static_cast<double>(memory.total));
    return Ok{};
}

Result<DeviceArena> DeviceArena::create(int device, int64_t bytes) {
    if (bytes <= 0) return fail(ErrorKind::memory, "device arena: {} bytes requested", bytes);
    NIBBLE_TRY(Budget * budget, budget_of(device));
    const int64_t held = budget->held += bytes;
    const auto give_back = [&] { budget->held -= bytes; };
    if (held > budget->limit) {
        give_back();
        return fail(ErrorKind::memory,
                    "{} bytes on cuda:{} exceed this process's share of its memory: {} of {} are used", bytes, device,
                    held - bytes, budget->limit.load());
    }
    CurrentDevice current(device);
    if (Status status = current.status(); !status.ok()) {
        give_back();
        return std::move(status).error();
    }
    void* base = nullptr;
    if (const cudaError_t code = cudaMalloc(&base, static_cast<size_t>(bytes)); code != cudaSuccess) {
        give_back();
        size_t free = 0, total = 0;
        cudaGetLastError();  // out of memory is not sticky: clears it so that the next launch does not report it
        if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = total = 0;
        return fail(ErrorKind::memory, "cudaMalloc: {} bytes on cuda:{}: {} ({} of {} bytes are free)", bytes, device,
                    cudaGetErrorString(code), free, total);
    }
    return DeviceArena(static_cast<std::byte*>(base), device, bytes);
}

Result<std::byte*> DeviceArena::allocate(int64_t bytes) {
    const int64_t left = capacity_ - used_;
    if (bytes < 0 || bytes > left)
        return fail(ErrorKind::memory, "device arena: {} bytes requested, {} of {} are free", bytes, left, capacity_);
    std::byte* p = base_.get() + used_;
    used_ = std::min(capacity_, used_ + round_up(bytes, alignment));
    return p;
}

void DeviceArena::Free::operator()(std::byte* p) const {
    CurrentDevice current(device);
    cudaFree(p);
    budgets[static_cast<size_t>(device)].held -= bytes;
}

Result<PinnedBuffer> PinnedBuffer::create(int64_t bytes) {
    if (bytes <= 0) return fail(ErrorKind::memory, "pinned buffer: {} bytes requested", bytes);
    void* data = nullptr;
    NIBBLE_CUDA_CALL(cudaMallocHost, &data, static_cast<size_t>(bytes));
    return PinnedBuffer(static_cast<std::byte*>(data), bytes);
}

void PinnedBuffer::Free::operator()(std::byte* p) const { cudaFreeHost(p); }

namespace {

Status copy(std::byte* to, const std::byte* from, int64_t bytes, cudaMemcpyKind kind, const Stream& stream) {
    if (bytes == 0) return Ok{};
    return cuda_status(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, static_cast<cudaStream_t>(stream.handle())),
        "cudaMemcpyAsync");
}

}  // namespace

Status copy_to_device(std::byte* device, const std::byte* host, int64_t bytes, const Stream& stream) {
    return copy(device, host, bytes, cudaMemcpyHostToDevice, stream);
}

Status copy_to_host(std::byte* host, const std::byte* device, int64_t bytes, const Stream& stream) {
    return copy(host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

Status copy_on_device(std::byte* to, const std::byte* from, int64_t bytes, const Stream& stream) {
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

Status fill_device(std::byte* device, uint8_t value, int64_t bytes, const Stream& stream) {
    if (bytes == 0) return Ok{};
    return cuda_status(
        cudaMemsetAsync(device, value, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream.handle())),
        "cudaMemsetAsync");
}

}  // namespace nibble
