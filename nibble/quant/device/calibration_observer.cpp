#include "quant/device/calibration_observer.h"

#include "base/checked.h"
#include "kernels/operand_matmul_cuda.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

template <class T>
std::byte* bytes_of(T* p) {
    return reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(p));
}

}  // namespace

Result<std::byte*> DeviceCalibrationObserver::Memory::take(int64_t bytes) {
    const int64_t size = round_up(bytes, DeviceArena::alignment);
    if (auto found = free_.extract(size)) return taken_.insert(std::move(found))->second.data;
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(device_, size));
    NIBBLE_TRY(std::byte * data, arena.allocate(size));
    taken_.emplace(size, Piece{std::move(arena), data});
    return data;
}

void DeviceCalibrationObserver::Memory::give_all() { free_.merge(taken_); }

DeviceCalibrationObserver::DeviceCalibrationObserver(const Plan& plan, const CalibrationOptions& options,
                                                     Calibration* seen, bool solves, const StatisticsStore& done,
                                                     DeviceLayerwise& layerwise)
    : plan_(&plan), options_(&options), seen_(seen), layerwise_(&layerwise), memory_(layerwise.device().index) {
    for (const PlanEntry& entry : plan.entries)
        if (solves && entry.solver && !needed_statistics(entry.solver).gradients && !done.holds(entry.module))
            solved_.emplace(entry.module, &entry);
}

Result<std::byte*> DeviceCalibrationObserver::scratch(int64_t bytes) {
    if (!scratch_ || scratch_->capacity() < bytes) {
        NIBBLE_CHECK(layerwise_->stream().synchronize());
        scratch_.reset();
        NIBBLE_TRY(scratch_, DeviceArena::create(layerwise_->device().index, bytes));
    }
    scratch_->release(0);
    return scratch_->allocate(bytes);
}

// ---- Ranges --------------------------------------------------------------------------------------------------------

std::vector<Range*> DeviceCalibrationObserver::watched(std::span<const std::string> linears) {
    std::vector<Range*> ranges;
    if (!seen_) return ranges;
    for (const std::string& name : linears)
        if (const auto found = seen_->inputs.find(name); found != seen_->inputs.end()) ranges.push_back(&found->second);
    return ranges;
}

Result<DeviceCalibrationObserver::Place*> DeviceCalibrationObserver::place(const std::string& name,
                                                                           std::vector<std::vector<Range*>> ranges,
                                                                           int64_t cols) {
    if (const auto found = places_.find(name); found != places_.end()) return &found->second;
    Place p{.ranges = std::move(ranges), .cols = cols};
    const auto experts = std::ssize(p.ranges);
    const auto zeros = [&](int64_t bytes) -> Result<std::byte*> {
        NIBBLE_TRY(std::byte * data, memory_.take(bytes));
        NIBBLE_CHECK(fill_device(data, 0, bytes, layerwise_->stream()));
        return data;
    };
    NIBBLE_TRY(std::byte * sums, zeros(experts * int64_t{sizeof(cuda::RangeSums)}));
    p.sums = reinterpret_cast<cuda::RangeSums*>(sums);
    if (options_->range.kind != RangeRule::Kind::max) {
        NIBBLE_TRY(std::byte * counts, zeros(experts * cuda::range_buckets * 8));
        p.counts = reinterpret_cast<uint64_t*>(counts);
    }
    return &places_.emplace(name, std::move(p)).first->second;
}

Status DeviceCalibrationObserver::observe(const std::string& name, Range* range, const std::byte* x, int64_t rows,
                                          int64_t cols, const Stream& stream) {
    NIBBLE_TRY(Place * p, place(name, {{range}}, cols));
    return cuda::observe_ranges({.x = x, .rows = rows, .cols = cols}, p->sums, p->counts, stream);
}

Status DeviceCalibrationObserver::input(std::span<const std::string> linears, const std::byte* x, int64_t rows,
                                        int64_t cols, const Stream& stream) {
    if (auto ranges = watched(linears); !ranges.empty()) {
        NIBBLE_TRY(Place * p, place(linears[0], {std::move(ranges)}, cols));
        NIBBLE_CHECK(cuda::observe_ranges({.x = x, .rows = rows, .cols = cols}, p->sums, p->counts, stream));
    }
    return add_statistics(linears, x, rows, stream);
}

Status DeviceCalibrationObserver::expert_inputs(std::span<const std::vector<std::string>> linears, const std::byte* x,
                                                int64_t rows, int64_t cols, const int32_t* begin,
                                                const Stream& stream) {
    std::vector<std::vector<Range*>> ranges;
    bool any = false, solves = false;
    for (const auto& names : linears) {
        ranges.push_back(watched(names));
        any |= !ranges.back().empty();
        solves |= std::ranges::any_of(names, [&](const std::string& name) { return solved_.contains(name); });
    }
    if (any) {
        NIBBLE_TRY(Place * p, place(linears[0][0], std::move(ranges), cols));
        NIBBLE_CHECK(cuda::observe_ranges(
            {.x = x, .rows = rows, .cols = cols, .experts = static_cast<int>(linears.size()), .begin = begin}, p->sums,
            p->counts, stream));
    }
    if (!solves) return Ok{};
    std::vector<int32_t> at(linears.size() + 1);
    NIBBLE_CHECK(copy_to_host(bytes_of(at.data()), bytes_of(begin), 4 * std::ssize(at), stream));
    NIBBLE_CHECK(stream.synchronize());
    for (size_t e = 0; e < linears.size(); ++e)
        if (const int64_t mine = at[e + 1] - at[e]; mine > 0)
            NIBBLE_CHECK(add_statistics(linears[e], x + at[e] * cols * 2, mine, stream));
    return Ok{};
}

Status DeviceCalibrationObserver::kv(const std::string& prefix, const cuda::KvCache& cache, const int64_t* slots,
                                     int64_t rows, const Stream& stream) {
    if (!seen_) return Ok{};
    const auto keys = seen_->keys.find(prefix), values = seen_->values.find(prefix);
    if (keys == seen_->keys.end() && values == seen_->values.end()) return Ok{};
    const int64_t k_cols = int64_t{cache.shape.kv_heads} * cache.shape.k_dim;
    const int64_t v_cols = int64_t{cache.shape.kv_heads} * cache.shape.v_dim;
    const int64_t k_bytes = round_up(rows * k_cols * 2, DeviceArena::alignment);
    NIBBLE_TRY(std::byte * k, scratch(k_bytes + rows * v_cols * 2));
    std::byte* const v = k + k_bytes;
    NIBBLE_CHECK(cuda::read_kv(cache, slots, rows, k, v, stream));
    if (keys != seen_->keys.end()) NIBBLE_CHECK(observe(prefix + " keys", &keys->second, k, rows, k_cols, stream));
    if (values != seen_->values.end())
        NIBBLE_CHECK(observe(prefix + " values", &values->second, v, rows, v_cols, stream));
    return Ok{};
}

Status DeviceCalibrationObserver::fetch_ranges() {
    std::vector<std::vector<cuda::RangeSums>> sums;
    for (const auto& [name, p] : places_) {
        auto& to = sums.emplace_back(p.ranges.size());
        NIBBLE_CHECK(copy_to_host(bytes_of(to.data()), bytes_of(p.sums),
                                  std::ssize(to) * int64_t{sizeof(cuda::RangeSums)}, layerwise_->stream()));
    }
    NIBBLE_CHECK(layerwise_->stream().synchronize());
    std::vector<uint64_t> counts;
    size_t i = 0;
    for (auto& [name, p] : places_) {
        const std::vector<cuda::RangeSums>& found = sums[i++];
        for (size_t e = 0; e < p.ranges.size(); ++e) {
            if (p.ranges[e].empty()) continue;
            if (p.counts) {
                counts.resize(static_cast<size_t>(cuda::range_buckets));
                NIBBLE_CHECK(copy_to_host(bytes_of(counts.data()),
                                          bytes_of(p.counts + static_cast<int64_t>(e) * cuda::range_buckets),
                                          8 * cuda::range_buckets, layerwise_->stream()));
                NIBBLE_CHECK(layerwise_->stream().synchronize());
            }
            const auto rows = static_cast<int64_t>(found[e].rows);
            for (Range* range : p.ranges[e]) range->add_counts(rows, rows * p.cols, found[e].largest, counts);
        }
    }
    places_.clear();
    return Ok{};
}

// ---- Second moments ------------------------------------------------------------------------------------------------

Result<DeviceCalibrationObserver::Moments*> DeviceCalibrationObserver::moments(const PlanEntry& entry, bool local,
                                                                               std::optional<float> scale) {
    const auto [found, fresh] = open_.try_emplace((local ? "local " : "") + entry.module);
    Moments& m = found->second;
    if (!fresh) return &m;
    m.local = local, m.scale = scale, m.n = entry.cols();
    const int64_t bytes = 8 * m.n * (local ? LocalGram::block : m.n);
    NIBBLE_TRY(std::byte * sums, memory_.take(bytes));
    NIBBLE_CHECK(fill_device(sums, 0, bytes, layerwise_->stream()));
    m.sums = reinterpret_cast<double*>(sums);
    return &m;
}

// Linears that read the same rows share their moments.
Status DeviceCalibrationObserver::add_statistics(std::span<const std::string> linears, const std::byte* x, int64_t rows,
                                                 const Stream& stream) {
    std::vector<Moments*> added;
    for (const std::string& name : linears) {
        const auto found = solved_.find(name);
        if (found == solved_.end()) continue;
        const PlanEntry& entry = *found->second;
        const StatisticsNeeds needs = needed_statistics(entry.solver);
        std::optional<float> scale;
        if (scales_ && entry.solver.kind == WeightSolver::Kind::gptq && entry.activation == ActivationFormat::nvfp4)
            scale = *scales_->input[static_cast<size_t>(&entry - plan_->entries.data())];
        for (const bool local : {true, false}) {
            if (!(local ? needs.local : needs.inputs)) continue;
            const auto same =
                std::ranges::find_if(added, [&](const Moments* m) { return m->local == local && m->scale == scale; });
            Moments* m = same == added.end() ? nullptr : *same;
            if (!m) {
                NIBBLE_TRY(m, moments(entry, local, scale).within(name));
                NIBBLE_CHECK(add(*m, x, rows, stream).within(name));
                added.push_back(m);
            }
            if (std::ranges::find(m->entries, &entry) == m->entries.end()) m->entries.push_back(&entry);
        }
    }
    return Ok{};
}

Status DeviceCalibrationObserver::add(Moments& m, const std::byte* x, int64_t rows, const Stream& stream) {
    m.tokens += rows;
    if (m.local) return cuda::add_local_moments(x, rows, m.n, m.sums, stream);
    const int64_t moments = round_up(cuda::moments_scratch_bytes(m.n), DeviceArena::alignment);
    NIBBLE_TRY(std::byte * memory, scratch(moments + (m.scale ? rows * m.n * 2 : 0)));
    if (m.scale) {
        // Codes times block scales are exact in BF16. The input scale is applied, squared, when the sums are fetched.
        NIBBLE_CHECK(cuda::quantize_inputs({.format = ActivationFormat::nvfp4,
                                            .x = x,
                                            .tokens = rows,
                                            .cols = m.n,
                                            .input_scale = *m.scale,
                                            .out = memory + moments},
                                           false, stream));
        x = memory + moments;
    }
    return cuda::add_moments(x, rows, m.n, m.sums, memory, stream);
}

Status DeviceCalibrationObserver::fetch_moments(BlockSolver& solver) {
    std::map<const PlanEntry*, LinearStatistics> done;
    for (auto& [name, m] : open_) {
        std::vector<double> sums(static_cast<size_t>(m.n * (m.local ? LocalGram::block : m.n)));
        NIBBLE_CHECK(copy_to_host(bytes_of(sums.data()), bytes_of(m.sums), 8 * std::ssize(sums), layerwise_->stream()));
        NIBBLE_CHECK(layerwise_->stream().synchronize());
        if (!std::ranges::all_of(sums, [](double s) { return std::isfinite(s); }))
            return fail("{}: its inputs are not finite", m.entries[0]->module);
        const double unit = m.scale ? double{*m.scale} * double{*m.scale} : 1.0;
        if (m.scale)
            for (double& s : sums) s *= unit;
        for (const PlanEntry* entry : m.entries) {
            LinearStatistics& to = done[entry];
            to.tokens = m.tokens;
            if (m.local)
                for (const double s : sums) to.local.push_back(static_cast<float>(s / static_cast<double>(m.tokens)));
            else
                to.inputs = Gram::of(sums, m.n, m.tokens, static_cast<double>(m.tokens));
        }
    }
    open_.clear();
    for (auto& [entry, statistics] : done) solver.add(entry->module, std::move(statistics));
    return solver.solve_if_enough();
}

Status DeviceCalibrationObserver::end_block(BlockSolver* solver) {
    NIBBLE_CHECK(fetch_ranges());
    if (solver) NIBBLE_CHECK(fetch_moments(*solver));
    memory_.give_all();
    return Ok{};
}

}  // namespace nibble
