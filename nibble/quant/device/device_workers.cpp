#include "quant/device_workers.h"

#include "kernels/quantize_cuda.h"
#include "quant/device/worker_memory.h"
#include "quant/panels.h"
#include "quant/unit_scales.h"
#include "quant/units.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace nibble {
namespace {

// losses per search
constexpr int64_t most_losses = 1024, losses_bytes = most_losses * int64_t{sizeof(double)};

int64_t aligned(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

// Precedes each panel on its way to the device, and the results on their way back.
struct Header {
    TensorAmax amax;
    cuda::DeviceScan scan;
    cuda::DeviceStats stats;
};
const Header fresh_header{.scan = {0.0f, 0, ~uint64_t{0}}};

// Offsets of the parts of a result in one buffer, so that one transfer copies all of them.
struct ResultLayout {
    int64_t rows, codes, block_scales, float_scales, bytes;

    ResultLayout(Format format, int64_t panel_rows, int64_t cols) {
        rows = aligned(sizeof(Header));
        codes = aligned(rows + panel_rows * int64_t{sizeof(cuda::RowSums)});
        block_scales = aligned(codes + code_bytes(format, panel_rows, cols));
        float_scales = aligned(block_scales + block_scale_bytes(format, panel_rows, cols));
        bytes = aligned(float_scales + 4 * float_scale_count(format, panel_rows, cols));
    }
    QuantSpan span(std::byte* base, Format format, int64_t panel_rows, int64_t cols) const {
        const auto at = [&](int64_t offset) { return reinterpret_cast<uint8_t*>(base + offset); };
        return {format, panel_rows, cols, at(codes), at(block_scales), reinterpret_cast<float*>(base + float_scales)};
    }
};

// Slots of equal size; any thread may return them.
class SlotPool {
public:
    SlotPool(std::byte* base, int64_t bytes, int64_t count) {
        for (int64_t i = count; i-- > 0;) free_.push_back(base + i * bytes);
    }
    // Returns a slot; null: all are in use. The pool must outlive the slots.
    std::shared_ptr<std::byte> take() {
        std::lock_guard lock(mutex_);
        if (free_.empty()) return nullptr;
        std::byte* slot = free_.back();
        free_.pop_back();
        return {slot, [this](std::byte* p) {
                    std::lock_guard back(mutex_);
                    free_.push_back(p);
                }};
    }

private:
    std::mutex mutex_;
    std::vector<std::byte*> free_;
};

struct WorkerMemory {
    std::byte *panel, *result, *scratch;  // device memory
    std::byte *pinned_panel, *pinned_result;
};

class DeviceWorker : public PanelWorker {
public:
    DeviceWorker(Stream stream, Event done, const WorkerMemory& memory, SlotPool& kept)
        : stream_(std::move(stream)), done_(std::move(done)), memory_(memory), kept_(&kept) {}

    Result<MatrixView> place(const MatrixView& host, KeptPanel* keep) override {
        MatrixView placed = host;
        std::shared_ptr<std::byte> slot = keep ? kept_->take() : nullptr;
        std::byte* target = slot ? slot.get() : memory_.panel;
        placed.data = target;
        std::memcpy(memory_.pinned_panel, host.data, static_cast<size_t>(host.bytes()));
        NIBBLE_CHECK(copy_to_device(target, memory_.pinned_panel, host.bytes(), stream_));
        if (slot) *keep = {placed, std::move(slot)};
        return placed;
    }

    Result<Scan> scan(const MatrixView& placed) override {
        NIBBLE_CHECK(begin({}));
        NIBBLE_CHECK(cuda::scan(placed, 0, &header()->scan, stream_));
        NIBBLE_CHECK(fetch(memory_.result, int64_t{sizeof(Header)}));
        return found_scan();
    }

    Status tensor_losses(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                         std::span<const float> multipliers, std::span<double> losses) override {
        NIBBLE_CHECK(begin(amax));
        const auto bytes = static_cast<int64_t>(losses.size_bytes());
        auto* sums = reinterpret_cast<double*>(memory_.scratch);
        NIBBLE_CHECK(fill_device(memory_.scratch, 0, bytes, stream_));
        NIBBLE_CHECK(cuda::tensor_losses(placed, spec, &header()->amax.search, multipliers, sums,
                                         reinterpret_cast<double*>(memory_.scratch + losses_bytes), stream_));
        NIBBLE_CHECK(fetch(memory_.scratch, bytes));
        const auto* found = reinterpret_cast<const double*>(memory_.pinned_result);
        for (size_t i = 0; i < losses.size(); ++i) losses[i] += found[i];
        return Ok{};
    }

    Result<QuantizedPanel> quantize(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                                    float tensor_scale, bool scan) override {
        const ResultLayout layout(spec.format, placed.rows, placed.cols);
        NIBBLE_CHECK(begin(amax));
        if (scan) NIBBLE_CHECK(cuda::scan(placed, 0, &header()->scan, stream_));
        QuantSpan out = layout.span(memory_.result, spec.format, placed.rows, placed.cols);
        out.tensor_scale = tensor_scale;
        auto* rows = reinterpret_cast<cuda::RowSums*>(memory_.result + layout.rows);
        NIBBLE_CHECK(cuda::quantize(placed, spec, {&header()->amax.search, &header()->amax.store}, out,
                                    {.raised_blocks = &header()->stats.raised_blocks}, stream_));
        NIBBLE_CHECK(cuda::measure(placed, out, &header()->stats, rows, stream_));
        NIBBLE_CHECK(fetch(memory_.result, layout.bytes));

        QuantizedPanel result{.scan = found_scan()};
        QuantSpan codes = layout.span(memory_.pinned_result, spec.format, placed.rows, placed.cols);
        codes.tensor_scale = tensor_scale;
        result.codes = codes;
        const auto* sums = reinterpret_cast<const cuda::RowSums*>(memory_.pinned_result + layout.rows);
        cuda::add_stats(pinned_header().stats, {sums, static_cast<size_t>(placed.rows)}, result.codes, result.stats);
        return result;
    }

private:
    Header* header() { return reinterpret_cast<Header*>(memory_.result); }
    const Header& pinned_header() const { return *reinterpret_cast<const Header*>(memory_.pinned_result); }

    Scan found_scan() const {
        const cuda::DeviceScan& found = pinned_header().scan;
        return {found.amax, static_cast<int64_t>(found.first_nonfinite)};
    }

    // Resets the counters and sets the maxima for the kernels.
    Status begin(const TensorAmax& amax) {
        NIBBLE_CHECK(use_device(stream_.device()));
        auto* h = reinterpret_cast<Header*>(memory_.pinned_result);
        *h = fresh_header;
        h->amax = amax;
        return copy_to_device(memory_.result, memory_.pinned_result, int64_t{sizeof(Header)}, stream_);
    }

    // Copies results to the host and waits.
    Status fetch(const std::byte* from, int64_t bytes) {
        NIBBLE_CHECK(copy_to_host(memory_.pinned_result, from, bytes, stream_));
        NIBBLE_CHECK(done_.record(stream_));
        return done_.synchronize();
    }

    Stream stream_;
    Event done_;
    WorkerMemory memory_;
    SlotPool* kept_;
};

class DeviceWorkers : public PanelWorkers {
public:
    static Result<std::unique_ptr<PanelWorkers>> create(const DeviceInfo& info, const DeviceMemoryPlan& memory) {
        NIBBLE_CHECK(use_device(info.index));
        const int64_t bytes = memory.least_bytes() + memory.kept_panels * memory.panel_bytes;
        NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, bytes));
        NIBBLE_TRY(PinnedBuffer pinned, PinnedBuffer::create(memory.pinned_bytes()));
        NIBBLE_TRY(std::byte * at, arena.allocate(bytes));
        std::unique_ptr<DeviceWorkers> made(new DeviceWorkers(info, std::move(arena), std::move(pinned)));
        made->kept_ = std::make_unique<SlotPool>(at + memory.least_bytes(), memory.panel_bytes, memory.kept_panels);
        std::byte* host = made->pinned_.data();
        for (int i = 0; i < memory.workers; ++i) {
            const WorkerMemory parts{.panel = at,
                                     .result = at + memory.panel_bytes,
                                     .scratch = at + memory.panel_bytes + memory.result_bytes,
                                     .pinned_panel = host,
                                     .pinned_result = host + memory.panel_bytes};
            at += memory.worker_bytes();
            host += memory.panel_bytes + memory.result_bytes;
            NIBBLE_TRY(Stream stream, Stream::create(info.index));
            NIBBLE_TRY(Event done, Event::create_sleeping());
            made->workers_.emplace_back(std::move(stream), std::move(done), parts, *made->kept_);
        }
        return std::unique_ptr<PanelWorkers>(std::move(made));
    }

    std::string_view name() const override { return name_; }
    int count() const override { return static_cast<int>(workers_.size()); }
    PanelWorker& operator[](int worker) override { return workers_[static_cast<size_t>(worker)]; }

private:
    DeviceWorkers(const DeviceInfo& info, DeviceArena arena, PinnedBuffer pinned)
        : name_(fmt::format("cuda:{} {}", info.index, info.name)),
          arena_(std::move(arena)),
          pinned_(std::move(pinned)) {}

    std::string name_;
    DeviceArena arena_;
    PinnedBuffer pinned_;
    std::unique_ptr<SlotPool> kept_;
    std::vector<DeviceWorker> workers_;
};

bool on_device(const PlanEntry& entry) {
    const Format format = entry.spec.format;
    return format != Format::none && format != Format::int4 && !entry.solver;
}

// Returns the bytes per element that read_weights() returns.
int64_t travelling_bytes(const CheckpointTensor& tensor, const Json& config) {
    return weight_dtype(tensor, config) == DType::bf16 ? 2 : 4;
}

// Checks that the multipliers of a search with one scale per block, row or tile fit into one launch.
Status check_multipliers(const PlanEntry& entry) {
    const Search& search = entry.spec.search;
    if (search.kind != Search::Kind::multipliers || searches_tensor(entry)) return Ok{};
    const auto n = static_cast<int>(search_multipliers(search).size());
    if (n <= cuda::most_multipliers) return Ok{};
    return fail("{}: {} multipliers are more than the {} that a search on a GPU takes; use --device cpu", entry.tensor,
                n, cuda::most_multipliers);
}

}  // namespace

DeviceMemoryPlan plan_device_memory(const Checkpoint& source, const Plan& plan, int workers) {
    DeviceMemoryPlan memory{.workers = workers, .panel_bytes = DeviceArena::alignment, .result_bytes = losses_bytes};
    std::vector<int64_t> panels(plan.entries.size());  // number of panels of entries whose panels are read twice
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        const CheckpointTensor& from = source.tensors()[i];
        if (!on_device(entry)) continue;
        const Panels cut(panel_format(from.format, entry.spec.format), entry.rows(), entry.cols());
        const int64_t rows = std::min(cut.panel_rows, cut.rows);
        const ResultLayout layout(entry.spec.format, rows, entry.cols());
        memory.panel_bytes =
            std::max(memory.panel_bytes, aligned(rows * entry.cols() * travelling_bytes(from, source.config())));
        memory.result_bytes = std::max(memory.result_bytes, layout.bytes);
        if (searches_tensor(entry)) {
            const auto n = static_cast<int64_t>(search_multipliers(entry.spec.search).size());
            const int64_t sums = cuda::tensor_losses_scratch(rows, n) * int64_t{sizeof(double)};
            memory.scratch_bytes = std::max(memory.scratch_bytes, aligned(losses_bytes + sums));
        }
        if (needs_tensor_amax(entry)) panels[i] = cut.count();
    }
    std::vector<int64_t> in_unit;
    for (const Unit& unit : make_units(plan)) {
        int64_t n = 0;
        for (const size_t i : unit) n += panels[i];
        in_unit.push_back(n);
    }
    const size_t in_flight = std::min(in_unit.size(), static_cast<size_t>(workers));
    std::partial_sort(in_unit.begin(), in_unit.begin() + static_cast<std::ptrdiff_t>(in_flight), in_unit.end(),
                      std::greater<>());
    for (size_t i = 0; i < in_flight; ++i) memory.kept_panels += in_unit[i];
    return memory;
}

Result<std::unique_ptr<PanelWorkers>> open_device_workers(const DeviceChoice& choice, const Checkpoint& source,
                                                          const Plan& plan, int workers) {
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    for (const PlanEntry& entry : plan.entries)
        if (on_device(entry)) NIBBLE_CHECK(check_multipliers(entry));
    DeviceMemoryPlan memory = plan_device_memory(source, plan, workers);
    NIBBLE_TRY(const DeviceMemory device, device_memory(info.index));
    const int64_t usable = device.free - (device.free >> 4);  // the driver needs some memory for itself
    if (memory.least_bytes() > usable)
        return fail(
            "cuda:{}: {} threads with panels of {} bytes need {} bytes of device memory, {} of {} bytes are free; pass "
            "a smaller --threads, or --device cpu",
            info.index, workers, memory.panel_bytes, memory.least_bytes(), device.free, device.total);
    memory.kept_panels =
        std::min(memory.kept_panels, std::min(usable - memory.least_bytes(), most_kept_bytes) / memory.panel_bytes);
    return DeviceWorkers::create(info, memory);
}

}  // namespace nibble
