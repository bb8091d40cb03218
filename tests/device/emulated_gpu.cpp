#include "device/emulated_gpu.h"

#include "device/emulated_memory.h"
#include "kernels/quantize_cuda.h"
#include "tensor/device_group.h"
#include "tensor/device_range.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

using test::on_device;
using test::on_host;

QuantSpan span_on_host(QuantSpan q) {
    q.codes = on_host(q.codes);
    q.block_scales = on_host(q.block_scales);
    q.float_scales = on_host(q.float_scales);
    return q;
}
MatrixView view_on_host(MatrixView m) {
    m.data = on_host(m.data);
    return m;
}

const QuantizeKernels& kernels() { return **select_quantize_kernels(); }

Error not_emulated() { return fail("the emulated GPU cannot do this"); }

int queue;

}  // namespace

test::EmulatedGpu& test::emulated_gpu() {
    static EmulatedGpu gpu;
    return gpu;
}

// ---- tensor/device.h -----------------------------------------------------------------------------------------------

Result<std::vector<DeviceInfo>> list_devices() { return std::vector<DeviceInfo>{{0, "emulated", 9, 0, 1, 1 << 30, 0}}; }
Result<DeviceInfo> open_device(const DeviceChoice& choice) {
    if (choice.index > 0) return fail("device cuda:{}: there are only 1 GPUs", choice.index);
    return DeviceInfo{0, "emulated", 9, 0, 1, 1 << 30, 0};
}
Result<DeviceMemory> device_memory(int) { return DeviceMemory{test::emulated_gpu().free_bytes, int64_t{1} << 30}; }
Status limit_device_memory(int, double) { return not_emulated(); }
Status use_device(int) { return Ok{}; }

Result<Stream> Stream::create(int device, Priority) { return Stream(&queue, device); }
void Stream::Destroy::operator()(void*) const {}
Status Stream::synchronize() const { return Ok{}; }

Result<Event> Event::create() { return Event(&queue); }
Result<Event> Event::create_sleeping() { return Event(&queue); }
void Event::Destroy::operator()(void*) const {}
Status Event::record(const Stream&) { return Ok{}; }
Status Event::synchronize() const {
    auto& left = test::emulated_gpu().fails_after;
    if (left < 0) return Ok{};
    if (left == 0) return fail("cudaEventSynchronize: the GPU has fallen off the bus");
    --left;
    return Ok{};
}
Result<bool> Event::happened() const { return true; }
Status Event::make_wait(const Stream&) { return Ok{}; }
Result<float> Event::since(const Event&) const { return not_emulated(); }

Result<DeviceArena> DeviceArena::create(int device, int64_t bytes) {
    test::emulated_gpu().arena_bytes = bytes;
    auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, static_cast<size_t>(round_up(bytes, alignment))));
    return DeviceArena(on_device(p), device, bytes);
}
Result<std::byte*> DeviceArena::allocate(int64_t bytes) {
    if (bytes > capacity_ - used_) return fail("device arena: full");
    std::byte* p = base_.get() + used_;
    used_ += round_up(bytes, alignment);
    return p;
}
void DeviceArena::Free::operator()(std::byte* p) const { std::free(on_host(p)); }

Result<PinnedBuffer> PinnedBuffer::create(int64_t bytes) {
    return PinnedBuffer(static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(bytes))), bytes);
}
void PinnedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

Status copy_to_device(std::byte* device, const std::byte* host, int64_t bytes, const Stream&) {
    test::emulated_gpu().copied_to_device += bytes;
    std::memcpy(on_host(device), host, static_cast<size_t>(bytes));
    return Ok{};
}
Status copy_to_host(std::byte* host, const std::byte* device, int64_t bytes, const Stream&) {
    std::memcpy(host, on_host(device), static_cast<size_t>(bytes));
    return Ok{};
}
Status copy_on_device(std::byte* to, const std::byte* from, int64_t bytes, const Stream&) {
    std::memmove(on_host(to), on_host(from), static_cast<size_t>(bytes));
    return Ok{};
}
Status fill_device(std::byte* device, uint8_t value, int64_t bytes, const Stream&) {
    std::memset(on_host(device), value, static_cast<size_t>(bytes));
    return Ok{};
}

// Models capture graphs only for decoding, which is not emulated.
Result<Graph> Graph::capture(const Stream&, const std::function<Status()>&) { return not_emulated(); }
Status Graph::launch(const Stream&) const { return not_emulated(); }
void Graph::Destroy::operator()(void*) const {}

// ---- tensor/device_group.h, tensor/device_range.h ------------------------------------------------------------------

Result<DeviceGroup::Id> DeviceGroup::make_id() { return not_emulated(); }
Result<DeviceGroup> DeviceGroup::create(const Id&, int, int, int, Alive) { return not_emulated(); }
void DeviceGroup::Close::operator()(void*) const {}
Status DeviceGroup::exchange(std::span<const Part>, std::span<const Part>, const Stream&) { return not_emulated(); }
Status DeviceGroup::add(std::span<const Sum>, const Stream&) { return not_emulated(); }
Status DeviceGroup::wait(const Stream&) { return not_emulated(); }
Status DeviceGroup::wait(const Event&) { return not_emulated(); }

void push_device_range(const char*) {}
void pop_device_range() {}

// ---- kernels/quantize_cuda.h ---------------------------------------------------------------------------------------

namespace cuda {

Status reset_scan(DeviceScan*, const Stream&) { return not_emulated(); }
Status scan(const MatrixView& panel, int64_t first_element, DeviceScan* scan, const Stream&) {
    DeviceScan& into = *on_host(scan);
    const Scan found = kernels().scan(view_on_host(panel));
    into.amax = std::max(into.amax, found.amax);
    if (found.first_nonfinite >= 0)
        into.first_nonfinite =
            std::min(into.first_nonfinite, static_cast<uint64_t>(first_element + found.first_nonfinite));
    return Ok{};
}
Status quantize(const MatrixView& panel, const WeightSpec& spec, const DeviceAmax& amax, const QuantSpan& out,
                const QuantizeOutputs& outputs, const Stream&) {
    const TensorAmax values{*on_host(amax.search), *on_host(amax.store)};
    QuantSpan host = span_on_host(out);
    host.tensor_scale = tensor_scale(spec, values);  // the caller's value is not read
    QuantStats stats;
    kernels().quantize(view_on_host(panel), spec, values, host, stats);
    *on_host(outputs.raised_blocks) += static_cast<uint64_t>(stats.raised_blocks);
    return Ok{};
}
int64_t tensor_losses_scratch(int64_t rows, int64_t multipliers) { return rows * multipliers; }
Status tensor_losses(const MatrixView& panel, const WeightSpec& spec, const float* search,
                     std::span<const float> multipliers, double* losses, double*, const Stream&) {
    kernels().tensor_losses(view_on_host(panel), spec, {*on_host(search), 0}, multipliers,
                            {on_host(losses), multipliers.size()});
    return Ok{};
}
Status measure(const MatrixView& weights, const QuantView& panel, DeviceStats* stats, RowSums* rows, const Stream&) {
    const MatrixView w = view_on_host(weights);
    DeviceStats& into = *on_host(stats);
    QuantStats all;
    for (int64_t row = 0; row < panel.rows; ++row) {
        const int64_t scale_row = panel.format == Format::fp8_block128 ? row / 128 * 128 : row;
        const QuantView q{panel.format,
                          1,
                          panel.cols,
                          on_host(panel.codes) + code_bytes(panel.format, row, panel.cols),
                          on_host(panel.block_scales) + block_scale_bytes(panel.format, row, panel.cols),
                          on_host(panel.float_scales) + float_scale_count(panel.format, scale_row, panel.cols),
                          panel.tensor_scale};
        QuantStats one;
        kernels().measure(w.panel(row, 1), q, one);
        on_host(rows)[row] = {one.squared_error, one.squared_weight};
        all += one;
    }
    into.max_error_bits = std::max(into.max_error_bits, std::bit_cast<uint32_t>(all.max_error));
    into.zeros += static_cast<uint32_t>(all.zeros);
    into.saturated += static_cast<uint32_t>(all.saturated);
    into.sign_flips += static_cast<uint32_t>(all.sign_flips);
    for (size_t i = 0; i < 256; ++i) {
        into.codes[i] += static_cast<uint32_t>(all.codes[i]);
        into.scales[i] += static_cast<uint32_t>(all.scales[i]);
    }
    return Ok{};
}
Status quantize_activations(const MatrixView&, Activations, const float*, const ActivationOutput&, const Stream&) {
    return not_emulated();
}
Status quantize_training(const MatrixView&, const float*, const TrainingRounding&, const ActivationOutput&,
                         const Stream&) {
    return not_emulated();
}
Status decode(const QuantView&, const float*, DType, std::byte*, const Stream&) { return not_emulated(); }
Status swizzle(const uint8_t*, int64_t, int64_t, uint8_t*, const Stream&) { return not_emulated(); }

}  // namespace cuda
}  // namespace nibble
