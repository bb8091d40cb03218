#include "train/device/device_ranks.h"

#include "kernels/train_cuda.h"

#include <bit>

namespace nibble {
namespace {

std::byte* raw(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

}  // namespace

int64_t DeviceRanks::bytes(const FlatLayout& flat, int64_t numbers, int rank, int size) {
    const FlatShard shard = FlatShard::of(flat.matrix_elements, rank, size);
    return (size - 1) * (4 * (shard.elements() + flat.vector_elements() + numbers) + 3 * DeviceArena::alignment);
}

Result<DeviceRanks> DeviceRanks::create(RankGroup* group, const FlatLayout& flat, int64_t numbers, int device) {
    DeviceRanks ranks;
    ranks.group_ = group;
    ranks.matrix_elements_ = flat.matrix_elements;
    ranks.vector_elements_ = flat.vector_elements();
    for (int r = 0; r < ranks.size(); ++r)
        ranks.shards_.push_back(FlatShard::of(flat.matrix_elements, r, ranks.size()));
    if (!group) return ranks;
    DeviceGroup::Id id;
    if (group->rank() == 0) {
        NIBBLE_TRY(id, DeviceGroup::make_id());
    }
    NIBBLE_TRY(id, group->share(id));
    NIBBLE_TRY(ranks.device_,
               DeviceGroup::create(id, group->rank(), group->size(), device, [group] { return group->alive(); }));
    NIBBLE_TRY(ranks.memory_, DeviceArena::create(device, bytes(flat, numbers, group->rank(), group->size())));
    ranks.most_numbers_ = numbers;
    if (numbers > 0 && group->size() > 1) {
        NIBBLE_TRY(ranks.numbers_, ranks.memory_->allocate_array<float>((group->size() - 1) * numbers));
    }
    for (int r = 0; r < ranks.size(); ++r) {
        float *matrices = nullptr, *vectors = nullptr;
        if (r != ranks.rank()) {
            NIBBLE_TRY(matrices, ranks.memory_->allocate_array<float>(ranks.shard().elements()));
            NIBBLE_TRY(vectors, ranks.memory_->allocate_array<float>(ranks.vector_elements_));
        }
        ranks.matrices_.push_back(matrices);
        ranks.vectors_.push_back(vectors);
    }
    return ranks;
}

Result<DeviceRanks::Share> DeviceRanks::share(int64_t pieces) const {
    const int64_t each = pieces / size();
    if (size() > 1 && (pieces % size() || !std::has_single_bit(static_cast<uint64_t>(each))))
        return fail(
            "{} micro-batches cannot be dealt to {} ranks: the rows of a step must be micro_batch times the ranks "
            "times a power of two",
            pieces, size());
    return Share{each * rank(), each * (rank() + 1)};
}

Result<DeviceRanks::Sum> DeviceRanks::add(float* own, int present, const Stream& stream) {
    if (!group_) return Sum{own, own + matrix_elements_};
    std::vector<DeviceGroup::Part> send, receive;
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const FlatShard& theirs = shards_[static_cast<size_t>(r)];
        send.push_back({r, raw(own + theirs.begin), 4 * theirs.elements()});
        receive.push_back({r, raw(matrices_[static_cast<size_t>(r)]), 4 * shard().elements()});
        send.push_back({r, raw(own + matrix_elements_), 4 * vector_elements_});
        receive.push_back({r, raw(vectors_[static_cast<size_t>(r)]), 4 * vector_elements_});
    }
    NIBBLE_CHECK(device_->exchange(send, receive, stream));
    std::vector<float*> matrices = matrices_, vectors = vectors_;
    matrices[static_cast<size_t>(rank())] = own + shard().begin;
    vectors[static_cast<size_t>(rank())] = own + matrix_elements_;
    // Nodes of one level, in order: the upper part of the tree.
    const auto nodes = static_cast<size_t>(present);
    for (size_t apart = 1; apart < nodes; apart *= 2)
        for (size_t i = 0; i + apart < nodes; i += 2 * apart) {
            if (shard().elements() > 0)
                NIBBLE_CHECK(cuda::add_gradient(matrices[i], matrices[i + apart], shard().elements(), stream));
            if (vector_elements_ > 0)
                NIBBLE_CHECK(cuda::add_gradient(vectors[i], vectors[i + apart], vector_elements_, stream));
        }
    return Sum{matrices[0], vectors[0]};
}

Status DeviceRanks::gather_sections(double* parts, const Stream& stream) {
    if (!group_) return Ok{};
    std::vector<DeviceGroup::Part> send, receive;
    const auto of = [&](int from, int to) {
        const FlatShard& s = shards_[static_cast<size_t>(from)];
        return DeviceGroup::Part{to, raw(parts + s.first_section), 8 * s.sections};
    };
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        send.push_back(of(rank(), r));
        receive.push_back(of(r, r));
    }
    return device_->exchange(send, receive, stream);
}

Result<const float*> DeviceRanks::others(const float* own, int64_t count, const Stream& stream) {
    if (size() == 1) return nullptr;
    if (count > most_numbers_) return fail("{} numbers of a rank, {} were planned for", count, most_numbers_);
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
    const auto of = [&](int from, int to) {
        const FlatShard& s = shards_[static_cast<size_t>(from)];
        return DeviceGroup::Part{to, published + 2 * s.begin, 2 * s.elements()};
    };
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        send.push_back(of(rank(), r));
        receive.push_back(of(r, r));
    }
    return device_->exchange(send, receive, stream);
}

Status DeviceRanks::wait(const Stream& stream) {
    if (!group_) return stream.synchronize();
    return device_->wait(stream);
}

}  // namespace nibble
