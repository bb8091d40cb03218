#include "train/device/device_ranks.h"

#include "kernels/optimizer_cuda.h"

#include <array>

namespace nibble {
namespace {

std::byte* raw(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

}  // namespace

int64_t DeviceRanks::bytes(const FlatLayout& flat, const FlatShards& shards, int64_t numbers) {
    const int64_t matrices = shards.sharding() == Sharding::states ? shards.elements(shards.largest()) : 0;
    return (shards.size() - 1) * (4 * (matrices + flat.vector_elements() + numbers) + 3 * DeviceArena::alignment);
}

Result<DeviceRanks> DeviceRanks::create(RankGroup* group, const FlatLayout& flat, const Options& options, int device) {
    const int64_t numbers = options.numbers;
    DeviceRanks ranks;
    ranks.group_ = group;
    ranks.matrix_elements_ = flat.matrix_elements;
    ranks.vector_elements_ = flat.vector_elements();
    ranks.shards_ = FlatShards::make(flat, options.sharding, ranks.size());
    ranks.order_ = options.order;
    ranks.most_numbers_ = numbers;
    if (!group) return ranks;
    if (options.link) {
        NIBBLE_TRY(ranks.device_, options.link());
    } else {
        DeviceGroup::Id id;
        if (group->rank() == 0) {
            NIBBLE_TRY(id, DeviceGroup::make_id());
        }
        NIBBLE_TRY(id, group->share(id));
        NIBBLE_TRY(ranks.device_,
                   DeviceGroup::create(id, group->rank(), group->size(), device, [group] { return group->alive(); }));
    }
    NIBBLE_TRY(ranks.memory_, DeviceArena::create(device, bytes(flat, ranks.shards_, numbers)));
    if (numbers > 0 && group->size() > 1) {
        NIBBLE_TRY(ranks.numbers_, ranks.memory_->allocate_array<float>((group->size() - 1) * numbers));
    }
    for (int r = 0; r < ranks.size(); ++r) {
        float *matrices = nullptr, *vectors = nullptr;
        if (r != ranks.rank()) {
            if (options.sharding == Sharding::states) {
                NIBBLE_TRY(matrices, ranks.memory_->allocate_array<float>(ranks.elements()));
            }
            NIBBLE_TRY(vectors, ranks.memory_->allocate_array<float>(ranks.vector_elements_));
        }
        ranks.matrices_.push_back(matrices);
        ranks.vectors_.push_back(vectors);
    }
    return ranks;
}

Status DeviceRanks::exchange(std::span<const DeviceGroup::Part> send, std::span<const DeviceGroup::Part> receive,
                             const Stream& stream) {
    return size() > 1 ? device_->exchange(send, receive, stream) : Status(Ok{});
}

// Adds the upper part of the tree: nodes of one level, in order.
Status DeviceRanks::add_nodes(std::vector<float*> nodes, float* to, int64_t count, const Stream& stream) {
    if (count == 0) return Ok{};
    if (nodes.size() == 1)
        return nodes[0] == to ? Status(Ok{}) : copy_on_device(raw(to), raw(nodes[0]), 4 * count, stream);
    size_t apart = 1;
    for (; 2 * apart < nodes.size(); apart *= 2)
        for (size_t i = 0; i + apart < nodes.size(); i += 2 * apart)
            NIBBLE_CHECK(cuda::add_gradient(nodes[i], nodes[i + apart], count, stream));
    return cuda::sum_gradients(to, nodes[0], nodes[apart], count, stream);
}

Status DeviceRanks::add_freely(std::span<const DeviceGroup::Sum> sums, const Stream& stream) {
    return size() > 1 ? device_->add(sums, stream) : Status(Ok{});
}

Status DeviceRanks::add_vectors(float* own, float* to, const Stream& stream) {
    if (order_ == GradientOrder::free) {
        NIBBLE_CHECK(add_freely(std::array{DeviceGroup::Sum{-1, own, vector_elements_}}, stream));
        return add_nodes({own}, to, vector_elements_, stream);
    }
    std::vector<DeviceGroup::Part> send, receive;
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        send.push_back({r, raw(own), 4 * vector_elements_});
        receive.push_back({r, raw(vectors_[static_cast<size_t>(r)]), 4 * vector_elements_});
    }
    NIBBLE_CHECK(exchange(send, receive, stream));
    std::vector<float*> nodes = vectors_;
    if (nodes.empty()) nodes.resize(1);
    nodes[static_cast<size_t>(rank())] = own;
    return add_nodes(std::move(nodes), to, vector_elements_, stream);
}

Result<DeviceRanks::Sum> DeviceRanks::add(float* own, int present, const Stream& stream) {
    if (!group_) return Sum{own, own + matrix_elements_};
    const FlatRun& mine = shards_.runs()[static_cast<size_t>(rank())];
    if (order_ == GradientOrder::free) {
        std::vector<DeviceGroup::Sum> sums{{-1, own + matrix_elements_, vector_elements_}};
        for (const FlatRun& run : shards_.runs()) sums.push_back({run.rank, own + run.begin, run.elements()});
        NIBBLE_CHECK(add_freely(sums, stream));
        return Sum{own + mine.begin, own + matrix_elements_};
    }
    std::vector<DeviceGroup::Part> send, receive;
    for (const FlatRun& theirs : shards_.runs()) {
        const int r = theirs.rank;
        if (r == rank()) continue;
        send.push_back({r, raw(own + theirs.begin), 4 * theirs.elements()});
        receive.push_back({r, raw(matrices_[static_cast<size_t>(r)]), 4 * mine.elements()});
        send.push_back({r, raw(own + matrix_elements_), 4 * vector_elements_});
        receive.push_back({r, raw(vectors_[static_cast<size_t>(r)]), 4 * vector_elements_});
    }
    NIBBLE_CHECK(exchange(send, receive, stream));
    std::vector<float*> matrices = matrices_, vectors = vectors_;
    matrices[static_cast<size_t>(rank())] = own + mine.begin;
    vectors[static_cast<size_t>(rank())] = own + matrix_elements_;
    matrices.resize(static_cast<size_t>(present));
    vectors.resize(static_cast<size_t>(present));
    float *const of_matrices = matrices[0], *const of_vectors = vectors[0];
    NIBBLE_CHECK(add_nodes(std::move(matrices), of_matrices, mine.elements(), stream));
    NIBBLE_CHECK(add_nodes(std::move(vectors), of_vectors, vector_elements_, stream));
    return Sum{of_matrices, of_vectors};
}

Status DeviceRanks::gather_sections(double* parts, const Stream& stream) {
    if (!group_) return Ok{};
    std::vector<DeviceGroup::Part> send, receive;
    for (const FlatRun& run : shards_.runs()) {
        const auto to = [&](int r) { return DeviceGroup::Part{r, raw(parts + run.first_section), 8 * run.sections}; };
        if (run.rank != rank()) receive.push_back(to(run.rank));
        for (int r = 0; run.rank == rank() && r < size(); ++r)
            if (r != rank()) send.push_back(to(r));
    }
    return exchange(send, receive, stream);
}

Result<const float*> DeviceRanks::others(const float* own, int64_t count, const Stream& stream) {
    if (size() == 1) return nullptr;
    if (count > most_numbers_) return fail("a rank has {} numbers, but the plan has {}", count, most_numbers_);
    std::vector<DeviceGroup::Part> send, receive;
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        send.push_back({r, raw(own), 4 * count});
        receive.push_back({r, raw(numbers_ + count * std::ssize(receive)), 4 * count});
    }
    NIBBLE_CHECK(device_->exchange(send, receive, stream));
    return numbers_;
}

Status DeviceRanks::take_from_first(std::span<const Numbers> arrays, const Stream& stream) {
    if (size() == 1) return Ok{};
    std::vector<DeviceGroup::Part> send, receive;
    for (const Numbers& a : arrays) {
        if (rank() > 0) receive.push_back({0, raw(a.data), 4 * a.count});
        for (int r = 1; rank() == 0 && r < size(); ++r) send.push_back({r, raw(a.data), 4 * a.count});
    }
    return device_->exchange(send, receive, stream);
}

Status DeviceRanks::gather_published(std::byte* published, const Stream& stream) {
    if (!group_) return Ok{};
    std::vector<DeviceGroup::Part> send, receive;
    for (const FlatRun& run : shards_.runs()) {
        const auto to = [&](int r) { return DeviceGroup::Part{r, published + 2 * run.begin, 2 * run.elements()}; };
        if (run.rank != rank()) receive.push_back(to(run.rank));
        for (int r = 0; run.rank == rank() && r < size(); ++r)
            if (r != rank()) send.push_back(to(r));
    }
    return exchange(send, receive, stream);
}

Status DeviceRanks::wait(const Stream& stream) {
    if (!group_) return stream.synchronize();
    return device_->wait(stream);
}

Status DeviceRanks::wait(const Event& event) {
    if (!group_) return event.synchronize();
    return device_->wait(event);
}

}  // namespace nibble
