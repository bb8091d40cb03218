#include "train/device/device_ranks.h"

#include "kernels/train_cuda.h"
#include "train/device/accumulation.h"
#include "train/rank_message.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace nibble {
namespace {

// Of a run that are exchanged and added at a time: large enough for NVLink, small beside a gradient.
constexpr int64_t most_landing = int64_t{1} << 24;

int64_t landing_elements(const FlatLayout& flat, int size) {
    int64_t most = flat.vector_elements();
    for (int r = 0; r < size; ++r) most = std::max(most, FlatShard::of(flat.matrix_elements, r, size).elements());
    return std::min(most, most_landing);
}

std::byte* raw(float* p) { return reinterpret_cast<std::byte*>(p); }

}  // namespace

int64_t DeviceRanks::bytes(const FlatLayout& flat, int size) {
    return (size - 1) * (4 * landing_elements(flat, size) + DeviceArena::alignment);
}

Result<DeviceRanks> DeviceRanks::create(RankGroup* group, RankLink link, const FlatLayout& flat, int device) {
    DeviceRanks ranks;
    ranks.group_ = group;
    ranks.matrix_elements_ = flat.matrix_elements;
    ranks.elements_ = flat.elements;
    for (int r = 0; r < ranks.size(); ++r)
        ranks.shards_.push_back(FlatShard::of(flat.matrix_elements, r, ranks.size()));
    if (!group) return ranks;
    if (link == RankLink::nccl) {
        // A rank without NCCL must not leave the others waiting for it.
        Result<DeviceGroup::Id> id = DeviceGroup::make_id();
        NIBBLE_TRY(const bool missing, group->any(!id.ok()));
        if (!id.ok()) return std::move(id).error();
        if (missing) return fail("another rank has no NCCL");
        NIBBLE_TRY(const RankBytes of_first, group->share(*std::move(id)));
        NIBBLE_TRY(ranks.nccl_, DeviceGroup::create(of_first, group->rank(), group->size(), device,
                                                    [group] { return group->alive(); }));
    }
    NIBBLE_TRY(ranks.memory_, DeviceArena::create(device, bytes(flat, group->size())));
    for (int r = 0; r < ranks.size(); ++r) {
        float* landing = nullptr;
        if (r != ranks.rank()) {
            NIBBLE_TRY(landing, ranks.memory_->allocate_array<float>(landing_elements(flat, group->size())));
        }
        ranks.landing_.push_back(landing);
    }
    return ranks;
}

Result<int64_t> DeviceRanks::free_memory(int device) const {
    NIBBLE_TRY(const DeviceMemory memory, device_memory(device));
    if (!group_) return memory.free;
    // Measured by all before anything more is allocated by one.
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    RankBytes own;
    put_number(own, memory.free);
    put_numbers(own, std::span<const char>(host));
    put_number(own, device);
    NIBBLE_TRY(const std::vector<RankBytes> all, group_->gather(own));
    int64_t least = memory.free;
    for (const RankBytes& one : all) {
        const auto same = std::ranges::count_if(all, [&](const RankBytes& other) {
            return std::ranges::equal(std::span(one).subspan(8), std::span(other).subspan(8));
        });
        least = std::min(least, RankReader(one).number() / same);
    }
    return least + memory_->capacity();
}

bool DeviceRanks::deals(int64_t pieces, int size) {
    return size == 1 || (pieces % size == 0 && std::has_single_bit(static_cast<uint64_t>(pieces / size)));
}

Result<std::span<const MicroBatch>> DeviceRanks::share(std::span<const MicroBatch> pieces) const {
    const int64_t count = std::ssize(pieces);
    if (!deals(count, size()))
        return fail(
            "{} micro-batches cannot be dealt to {} ranks: the rows of a step must be micro_batch times the ranks "
            "times a power of two",
            count, size());
    const auto each = static_cast<size_t>(count / size());
    return pieces.subspan(each * static_cast<size_t>(rank()), each);
}

Status DeviceRanks::add(float* gradient, const Stream& stream) {
    if (!group_) return Ok{};
    std::vector<Run> matrices;
    for (const FlatShard& s : shards_) matrices.push_back({s.begin, s.end});
    NIBBLE_CHECK(add_runs(gradient, matrices, stream));
    return add_runs(gradient, std::vector<Run>(shards_.size(), {matrix_elements_, elements_}), stream);
}

Status DeviceRanks::add_runs(float* gradient, std::span<const Run> runs, const Stream& stream) {
    int64_t longest = 0;
    for (const Run& run : runs) longest = std::max(longest, run.end - run.begin);
    const auto own = static_cast<size_t>(rank());
    const AccumulationPlan order = AccumulationPlan::make(size());
    for (int64_t from = 0; from < longest; from += most_landing) {
        const auto piece = [&](size_t r) {
            const int64_t begin = std::min(runs[r].begin + from, runs[r].end);
            return Run{begin, std::min(begin + most_landing, runs[r].end)};
        };
        const Run mine = piece(own);
        const int64_t count = mine.end - mine.begin;
        std::vector<Part> send, receive;
        for (size_t r = 0; r < runs.size(); ++r) {
            if (r == own) continue;
            const Run theirs = piece(r);
            send.push_back({static_cast<int>(r), raw(gradient + theirs.begin), 4 * (theirs.end - theirs.begin)});
            receive.push_back({static_cast<int>(r), raw(landing_[r]), 4 * count});
        }
        NIBBLE_CHECK(exchange(send, receive, stream));
        if (count == 0) continue;
        // Nodes of one level, in order: the upper part of the tree. A sum has the same bits with its operands the other
        // way round, so it may stay where the own node is.
        float* const here = gradient + mine.begin;
        std::vector<float*> buffers(static_cast<size_t>(order.buffers));
        const auto add = [&](const std::pair<int, int>& pair) {
            float *&to = buffers[static_cast<size_t>(pair.first)], *&with = buffers[static_cast<size_t>(pair.second)];
            if (with == here) std::swap(to, with);
            return cuda::add_gradient(to, with, count, stream);
        };
        for (size_t r = 0; r < runs.size(); ++r) {
            buffers[static_cast<size_t>(order.pieces[r].target)] = r == own ? here : landing_[r];
            for (const auto& pair : order.pieces[r].adds) NIBBLE_CHECK(add(pair));
        }
        for (const auto& pair : order.last) NIBBLE_CHECK(add(pair));
    }
    return Ok{};
}

Status DeviceRanks::gather_sections(double* parts, const Stream& stream) {
    std::vector<Run> runs;
    for (const FlatShard& s : shards_) runs.push_back({s.first_section, s.first_section + s.sections});
    return gather_runs(reinterpret_cast<std::byte*>(parts), runs, sizeof(double), stream);
}

Status DeviceRanks::gather_published(std::byte* published, const Stream& stream) {
    std::vector<Run> runs;
    for (const FlatShard& s : shards_) runs.push_back({s.begin, s.end});
    return gather_runs(published, runs, 2, stream);
}

Status DeviceRanks::gather_runs(std::byte* array, std::span<const Run> runs, int64_t element, const Stream& stream) {
    if (!group_) return Ok{};
    std::vector<Part> send, receive;
    const auto part = [&](int from, int peer) {
        const Run& run = runs[static_cast<size_t>(from)];
        return Part{peer, array + element * run.begin, element * (run.end - run.begin)};
    };
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        send.push_back(part(rank(), r));
        receive.push_back(part(r, r));
    }
    return exchange(send, receive, stream);
}

Status DeviceRanks::exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream) {
    if (nccl_) return nccl_->exchange(send, receive, stream);
    std::vector<RankBytes> to(static_cast<size_t>(size()));
    for (const Part& p : send) {
        RankBytes& bytes = to[static_cast<size_t>(p.rank)];
        bytes.resize(static_cast<size_t>(p.bytes));
        if (p.bytes > 0) NIBBLE_CHECK(copy_to_host(bytes.data(), p.data, p.bytes, stream));
    }
    NIBBLE_CHECK(stream.synchronize());
    NIBBLE_TRY(const auto from, group_->exchange(std::move(to)));
    for (const Part& p : receive) {
        const RankBytes& bytes = from[static_cast<size_t>(p.rank)];
        if (std::ssize(bytes) != p.bytes) return fail("rank {} sent {} of {} bytes", p.rank, bytes.size(), p.bytes);
        if (p.bytes > 0) NIBBLE_CHECK(copy_to_device(p.data, bytes.data(), p.bytes, stream));
    }
    return stream.synchronize();
}

Status DeviceRanks::wait(const Stream& stream) { return nccl_ ? nccl_->wait(stream) : stream.synchronize(); }

}  // namespace nibble
