#include "attention/check.h"

#include "base/thread_pool.h"
#include "formats/minifloat.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace nibble::bench {
namespace {

using cuda::kv_head_dim, cuda::KvType;

struct Shape {
    cuda::KvShape kv;
    int q_heads;
    std::string name() const {
        return fmt::format("{} KV, {}/{} heads, pages of {}", kv.type == KvType::bf16 ? "bf16" : "e4m3", q_heads,
                           kv.kv_heads, kv.page_tokens);
    }
};

// Sequences with their keys and values on the host (as the cache holds them) and in pages in random order.
class Batch {
public:
    Batch(const Stream& stream, const DeviceInfo& device, DeviceArena& arena, const Shape& shape, uint64_t seed)
        : stream_(stream), device_(device), arena_(arena), shape_(shape), random_(seed) {}

    Status make(std::vector<int32_t> lengths);
    // Output words [chosen, q_heads, 128] of these sequences as a batch of their own.
    Result<std::vector<uint16_t>> run(const std::vector<int>& chosen, bool overlap);
    std::vector<double> reference(int sequence, int q_head) const;
    int sequences() const { return static_cast<int>(lengths_.size()); }
    int32_t length(int s) const { return lengths_[static_cast<size_t>(s)]; }

private:
    template <class T>
    Result<T*> upload(const std::vector<T>& host) {
        NIBBLE_TRY(T * p, arena_.allocate_array<T>(static_cast<int64_t>(host.size())));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream_));
        return p;
    }
    float stored(uint16_t x, const std::vector<float>& scales, int head) const {
        if (shape_.kv.type == KvType::bf16) return bf16_to_float(x);
        const float scale = scales[static_cast<size_t>(head)];
        return e4m3_to_float(e4m3_from_float_saturating(bf16_to_float(x) / scale)) * scale;
    }

    const Stream& stream_;
    const DeviceInfo& device_;
    DeviceArena& arena_;
    Shape shape_;
    std::mt19937_64 random_;
    std::vector<int32_t> lengths_;
    std::vector<int64_t> first_;  // token of each sequence
    std::vector<uint16_t> k_, v_, q_;
    std::vector<float> k_scales_, v_scales_;
    std::vector<int32_t> table_;
    int64_t pitch_ = 0;
    cuda::KvCache cache_;
};

constexpr float softmax_scale = 0.0883883476f;  // 1 / sqrt(128)

Status Batch::make(std::vector<int32_t> lengths) {
    lengths_ = std::move(lengths);
    const int64_t width = int64_t{shape_.kv.kv_heads} * kv_head_dim;
    int64_t tokens = 0, pages = 0;
    for (const int32_t n : lengths_) {
        first_.push_back(tokens);
        tokens += n;
        const int64_t own = (n + shape_.kv.page_tokens - 1) / shape_.kv.page_tokens;
        pages += own;
        pitch_ = std::max(pitch_, own);
    }
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>& x, int64_t count, float sigma) {
        x.resize(static_cast<size_t>(count));
        for (uint16_t& v : x) v = bf16_from_float(sigma * normal(random_));
    };
    // Scores with a spread of about 3: some positions matter far more than others.
    fill(k_, tokens * width, 1.0f);
    fill(v_, tokens * width, 1.0f);
    fill(q_, int64_t{sequences()} * shape_.q_heads * kv_head_dim, 3.0f);
    for (int h = 0; h < shape_.kv.kv_heads; ++h) {
        k_scales_.push_back(0.01f + 0.001f * static_cast<float>(h));
        v_scales_.push_back(0.02f - 0.001f * static_cast<float>(h));
    }
    std::vector<int32_t> order(static_cast<size_t>(pages + 3));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    table_.assign(static_cast<size_t>(sequences() * pitch_), -1);
    std::vector<int64_t> slots;
    size_t next = 0;
    for (int s = 0; s < sequences(); ++s)
        for (int32_t t = 0; t < length(s); ++t) {
            int32_t& page = table_[static_cast<size_t>(s * pitch_ + t / shape_.kv.page_tokens)];
            if (t % shape_.kv.page_tokens == 0) page = order[next++];
            slots.push_back(int64_t{page} * shape_.kv.page_tokens + t % shape_.kv.page_tokens);
        }
    cache_.shape = shape_.kv;
    const int64_t bytes = (pages + 3) * shape_.kv.page_bytes();
    NIBBLE_TRY(cache_.pages, arena_.allocate(bytes));
    NIBBLE_CHECK(fill_device(cache_.pages, 0xFF, bytes, stream_));  // NaN in both types
    NIBBLE_TRY(cache_.k_scales, upload(k_scales_));
    NIBBLE_TRY(cache_.v_scales, upload(v_scales_));
    NIBBLE_TRY(const uint16_t* k, upload(k_));
    NIBBLE_TRY(const uint16_t* v, upload(v_));
    NIBBLE_TRY(const int64_t* device_slots, upload(slots));
    NIBBLE_CHECK(cuda::append_kv(cache_, reinterpret_cast<const std::byte*>(k), reinterpret_cast<const std::byte*>(v),
                                 device_slots, tokens, stream_));
    return stream_.synchronize();
}

Result<std::vector<uint16_t>> Batch::run(const std::vector<int>& chosen, bool overlap) {
    const DeviceArena::Mark mark = arena_.mark();
    std::vector<int32_t> lengths, table;
    std::vector<uint16_t> q;
    const auto row = static_cast<std::ptrdiff_t>(shape_.q_heads * kv_head_dim);
    for (const int s : chosen) {
        lengths.push_back(length(s));
        table.insert(table.end(), table_.begin() + s * pitch_, table_.begin() + (s + 1) * pitch_);
        q.insert(q.end(), q_.begin() + s * row, q_.begin() + (s + 1) * row);
    }
    const cuda::AttentionWork work = cuda::attention_work(lengths);
    NIBBLE_TRY(const cuda::AttentionPlan plan,
               cuda::plan_attention({.kv = shape_.kv,
                                     .q_heads = shape_.q_heads,
                                     .sequences = static_cast<int>(chosen.size()),
                                     .most_units = static_cast<int64_t>(work.units.size()),
                                     .most_tokens = *std::max_element(lengths.begin(), lengths.end()),
                                     .softmax_scale = softmax_scale,
                                     .table_pitch = pitch_},
                                    device_));
    cuda::AttentionInput in;
    NIBBLE_TRY(const uint16_t* device_q, upload(q));
    in.q = reinterpret_cast<const std::byte*>(device_q);
    NIBBLE_TRY(in.table, upload(table));
    NIBBLE_TRY(in.units, upload(work.units));
    NIBBLE_TRY(in.first_unit, upload(work.first_unit));
    std::vector<uint16_t> out(q.size() + 64);
    const auto bytes = static_cast<int64_t>(out.size() * 2);
    NIBBLE_TRY(std::byte * device_out, arena_.allocate(bytes));
    NIBBLE_TRY(std::byte * workspace, arena_.allocate(plan.workspace_bytes));
    NIBBLE_CHECK(fill_device(device_out, 0xA5, bytes, stream_));
    NIBBLE_CHECK(fill_device(workspace, 0xFF, plan.workspace_bytes, stream_));
    NIBBLE_CHECK(cuda::decode_attention(plan, in, cache_, device_out, workspace, overlap, stream_));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(out.data()), device_out, bytes, stream_));
    NIBBLE_CHECK(stream_.synchronize());
    arena_.release(mark);
    for (size_t i = q.size(); i < out.size(); ++i)
        if (out[i] != 0xA5A5) return fail("attention wrote behind its output");
    out.resize(q.size());
    return out;
}

std::vector<double> Batch::reference(int s, int q_head) const {
    const int head = q_head / (shape_.q_heads / shape_.kv.kv_heads);
    const size_t width = static_cast<size_t>(shape_.kv.kv_heads) * kv_head_dim;
    const uint16_t* q = q_.data() + (static_cast<size_t>(s) * shape_.q_heads + q_head) * kv_head_dim;
    const size_t first = static_cast<size_t>(first_[static_cast<size_t>(s)]) * width + head * kv_head_dim;
    std::vector<double> scores(static_cast<size_t>(length(s))), out(kv_head_dim);
    for (size_t t = 0; t < scores.size(); ++t)
        for (int d = 0; d < kv_head_dim; ++d)
            scores[t] += double{bf16_to_float(q[d])} * stored(k_[first + t * width + d], k_scales_, head) *
                         double{softmax_scale};
    const double top = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (size_t t = 0; t < scores.size(); ++t) {
        const double p = std::exp(scores[t] - top);
        sum += p;
        for (int d = 0; d < kv_head_dim; ++d) out[d] += p * stored(v_[first + t * width + d], v_scales_, head);
    }
    for (double& o : out) o /= sum > 0 ? sum : 1;
    return out;
}

void note(AttentionCheck& check, std::string where) {
    if (check.wrong++ == 0) check.first = std::move(where);
}

Result<std::vector<AttentionCheck>> check_shape(const Shape& shape, std::vector<int32_t> lengths, const Stream& stream,
                                                const DeviceInfo& device, DeviceArena& arena, uint64_t seed) {
    AttentionCheck error{shape.name() + ": distance from double precision"},
        bits{shape.name() + ": same bits in every batch"};
    const DeviceArena::Mark mark = arena.mark();
    Batch batch(stream, device, arena, shape, seed);
    NIBBLE_CHECK(batch.make(std::move(lengths)));
    std::vector<int> everyone(static_cast<size_t>(batch.sequences()));
    std::iota(everyone.begin(), everyone.end(), 0);
    NIBBLE_TRY(const auto all, batch.run(everyone, false));

    ThreadPool pool;
    std::vector<double> distance(everyone.size());
    pool.parallel_for(batch.sequences(), [&](int64_t s) {
        double square = 0, norm = 0;
        for (int h = 0; h < shape.q_heads; ++h) {
            const auto want = batch.reference(static_cast<int>(s), h);
            for (int d = 0; d < kv_head_dim; ++d) {
                const double got = bf16_to_float(all[(static_cast<size_t>(s) * shape.q_heads + h) * kv_head_dim + d]);
                square += (got - want[d]) * (got - want[d]);
                norm += want[d] * want[d];
            }
        }
        distance[static_cast<size_t>(s)] = norm > 0 ? std::sqrt(square / norm) : std::sqrt(square);
    });
    error.compared = static_cast<int64_t>(all.size());
    for (size_t s = 0; s < distance.size(); ++s) {
        if (!(distance[s] <= attention_bound))
            note(error, fmt::format("sequence of {} tokens: {:.2e}", batch.length(static_cast<int>(s)), distance[s]));
        error.worst = std::max(error.worst, distance[s]);
    }

    const auto compare = [&](const std::vector<int>& chosen, bool overlap) -> Status {
        NIBBLE_TRY(const auto out, batch.run(chosen, overlap));
        const size_t row = static_cast<size_t>(shape.q_heads) * kv_head_dim;
        for (size_t i = 0; i < out.size(); ++i, ++bits.compared)
            if (out[i] != all[chosen[i / row] * row + i % row])
                note(bits, fmt::format("sequence of {} tokens among {}, word {}", batch.length(chosen[i / row]),
                                       chosen.size(), i % row));
        return Ok{};
    };
    for (const int s : everyone) NIBBLE_CHECK(compare({s}, s % 2));
    NIBBLE_CHECK(compare(everyone, true));
    std::vector<int> reversed(everyone.rbegin(), everyone.rend());
    NIBBLE_CHECK(compare(reversed, true));
    arena.release(mark);
    return std::vector{error, bits};
}

}  // namespace

Result<std::vector<AttentionCheck>> check_attention(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                                    uint64_t seed, bool small) {
    std::vector<AttentionCheck> results;
    std::vector<int32_t> lengths{1, 0, 15, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700};
    if (!small) lengths.insert(lengths.end(), {1023, 1024, 1500, 4096, 9000, 17000});
    for (const KvType type : {KvType::bf16, KvType::e4m3})
        for (const auto& [q_heads, kv_heads, page] : {std::tuple{8, 2, 16}, {32, 8, 64}, {16, 2, 32}, {6, 2, 16}}) {
            if (small && q_heads == 32) continue;
            NIBBLE_TRY(auto checks, check_shape({{type, kv_heads, page}, q_heads}, lengths, stream, device, arena,
                                                seed + static_cast<uint64_t>(q_heads)));
            results.insert(results.end(), checks.begin(), checks.end());
            if (lengths.size() > 16) lengths.resize(16);  // the long ones once per type are enough
        }
    return results;
}

}  // namespace nibble::bench
