#include "gpu_bench/attention.h"

#include <cmath>
#include <numeric>

namespace nibble::bench {
namespace {

using cuda::KvType;

constexpr double bound = 4e-3;  // tolerance for probabilities of 8 or 11 bits and outputs of 8
constexpr int64_t values_from = 1234567, queries_from = 3456789;  // offsets in the noise; keys begin at 0
constexpr float cache_scale = 0.02f;                              // for E4M3

class Attention {
public:
    Attention(Kit& kit, const AttentionShape& shape, const Noise<uint16_t>& noise)
        : kit_(kit),
          s_(shape),
          noise_(noise),
          kv_{shape.type, shape.kv_heads, shape.page_tokens, shape.head_dim, shape.head_dim} {}

    Status load();
    Result<Check> check();
    Result<GraphTime> time(int repeats);
    double bytes() const { return static_cast<double>(cache_bytes_ + 4 * rows() * s_.q_heads * s_.head_dim); }
    double operations() const {
        const double pairs = s_.prefill ? 0.5 * s_.tokens * (s_.tokens + 1.0) : 1.0 * s_.sequences * s_.tokens;
        return 4.0 * pairs * s_.q_heads * s_.head_dim;
    }

private:
    int64_t rows() const { return s_.prefill ? s_.tokens : s_.sequences; }
    Status attend(int copy) {
        return cuda::attend(plan_, in_, {kv_, pages_ + copy % copies_ * cache_bytes_, scales_, scales_}, out_,
                            workspace_, true, kit_.stream);
    }
    float stored(uint16_t x) const {
        if (s_.type == KvType::bf16) return bf16_to_float(x);
        return e4m3_to_float(e4m3_from_float_saturating(bf16_to_float(x) / cache_scale)) * cache_scale;
    }
    // gives scores with a deviation of 3
    float softmax_scale() const { return 3.0f / std::sqrt(static_cast<float>(s_.head_dim)); }
    std::vector<double> reference(int64_t row, int head) const;

    Kit& kit_;
    AttentionShape s_;
    const Noise<uint16_t>& noise_;
    cuda::KvShape kv_;
    int64_t cache_bytes_ = 0;
    int copies_ = 1;
    cuda::AttentionPlan plan_;
    cuda::AttentionInput in_;
    const float* scales_ = nullptr;
    std::byte *pages_ = nullptr, *out_ = nullptr, *workspace_ = nullptr;
};

Status Attention::load() {
    const int64_t pitch = (s_.tokens + s_.page_tokens - 1) / s_.page_tokens, pages = s_.sequences * pitch;
    cache_bytes_ = pages * kv_.page_bytes();
    copies_ = s_.prefill ? 1 : static_cast<int>((int64_t{640} << 20) / cache_bytes_ + 1);
    NIBBLE_TRY(pages_, kit_.arena.allocate(cache_bytes_ * copies_));
    NIBBLE_CHECK(fill_device(pages_, 0, cache_bytes_, kit_.stream));
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), kit_.random);
    NIBBLE_TRY(in_.table, kit_.upload(table));
    NIBBLE_TRY(scales_, kit_.upload(std::vector<float>(static_cast<size_t>(s_.kv_heads), cache_scale)));
    std::vector<cuda::AttentionSegment> segments;
    if (s_.prefill) segments.push_back({0, s_.tokens, 0, 0});
    for (int i = 0; !s_.prefill && i < s_.sequences; ++i) segments.push_back({i, 1, s_.tokens - 1, i});
    NIBBLE_TRY(plan_, cuda::plan_attention({.kv = kv_,
                                            .q_heads = s_.q_heads,
                                            .softmax_scale = softmax_scale(),
                                            .table_pitch = pitch,
                                            .most_segments = std::ssize(segments),
                                            .most_rows = rows(),
                                            .most_tokens = s_.tokens},
                                           kit_.device));
    NIBBLE_TRY(const cuda::AttentionWork work, cuda::attention_work(plan_, segments));
    NIBBLE_TRY(in_.work, kit_.upload(work.words));
    const int64_t words = rows() * s_.q_heads * s_.head_dim;
    NIBBLE_TRY(std::byte * q, kit_.arena.allocate(words * 2));
    NIBBLE_CHECK(noise_.fill(kit_, q, words, queries_from));
    in_.q = q;
    NIBBLE_TRY(out_, kit_.poisoned(words * 2));
    NIBBLE_TRY(workspace_, kit_.arena.allocate(plan_.workspace_bytes));
    // The sequences are written one after another through the same buffers.
    const int64_t row = int64_t{s_.kv_heads} * s_.head_dim;
    const DeviceArena::Mark mark = kit_.arena.mark();
    NIBBLE_TRY(std::byte * k, kit_.arena.allocate(s_.tokens * row * 2));
    NIBBLE_TRY(std::byte * v, kit_.arena.allocate(s_.tokens * row * 2));
    std::vector<int64_t> slots(static_cast<size_t>(s_.tokens));
    for (int64_t s = 0; s < s_.sequences; ++s) {
        for (int64_t t = 0; t < s_.tokens; ++t)
            slots[size_t(t)] =
                int64_t{table[size_t(s * pitch + t / s_.page_tokens)]} * s_.page_tokens + t % s_.page_tokens;
        const DeviceArena::Mark inner = kit_.arena.mark();
        NIBBLE_TRY(const int64_t* device_slots, kit_.upload(slots));
        NIBBLE_CHECK(noise_.fill(kit_, k, s_.tokens * row, s * s_.tokens * row));
        NIBBLE_CHECK(noise_.fill(kit_, v, s_.tokens * row, values_from + s * s_.tokens * row));
        NIBBLE_CHECK(cuda::append_kv({kv_, pages_, scales_, scales_}, k, v, device_slots, s_.tokens, kit_.stream));
        NIBBLE_CHECK(kit_.stream.synchronize());
        kit_.arena.release(inner);
    }
    kit_.arena.release(mark);
    return repeat(kit_, pages_, cache_bytes_, copies_);
}

std::vector<double> Attention::reference(int64_t row, int head) const {
    const int64_t dim = s_.head_dim, kv_row = s_.kv_heads * dim;
    const int64_t first = s_.prefill ? 0 : row * s_.tokens * kv_row, seen = s_.prefill ? row + 1 : s_.tokens;
    const int64_t of_head = first + head / (s_.q_heads / s_.kv_heads) * dim;
    std::vector<double> q(static_cast<size_t>(dim)), scores(static_cast<size_t>(seen)), out(q.size());
    for (int64_t d = 0; d < dim; ++d)
        q[size_t(d)] = bf16_to_float(noise_.at(queries_from + (row * s_.q_heads + head) * dim + d));
    for (int64_t t = 0; t < seen; ++t) {
        for (int64_t d = 0; d < dim; ++d)
            scores[size_t(t)] += q[size_t(d)] * stored(noise_.at(of_head + t * kv_row + d));
        scores[size_t(t)] *= double{softmax_scale()};
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (int64_t t = 0; t < seen; ++t) {
        const double p = std::exp(scores[size_t(t)] - top);
        sum += p;
        for (int64_t d = 0; d < dim; ++d)
            out[size_t(d)] += p * stored(noise_.at(values_from + of_head + t * kv_row + d));
    }
    for (double& o : out) o /= sum;
    return out;
}

Result<Check> Attention::check() {
    NIBBLE_CHECK(attend(0));
    Check check;
    const int64_t dim = s_.head_dim, row_words = s_.q_heads * dim;
    std::vector<int64_t> sampled{0, rows() / 3, rows() - 1};
    sampled.erase(std::unique(sampled.begin(), sampled.end()), sampled.end());
    for (const int64_t row : sampled) {
        NIBBLE_TRY(const auto out, kit_.download<uint16_t>(out_ + row * row_words * 2, row_words));
        for (const int head : {0, s_.q_heads / 2 + 1, s_.q_heads - 1}) {
            const std::vector<double> want = reference(row, head);
            double square = 0, norm = 0;
            for (int64_t d = 0; d < dim; ++d) {
                const double got = bf16_to_float(out[size_t(head * dim + d)]);
                square += (got - want[size_t(d)]) * (got - want[size_t(d)]), norm += want[size_t(d)] * want[size_t(d)];
            }
            const double error = std::sqrt(square / norm);
            check.compared += dim;
            if (!(error <= bound)) check.note(fmt::format("query {} head {}: {:.2e} off", row, head, error));
            check.worst = std::max(check.worst, error);
        }
    }
    return check;
}

Result<GraphTime> Attention::time(int repeats) {
    const int launches = s_.prefill || cache_bytes_ > int64_t{1} << 29 ? 4 : 4 * std::min(copies_, 24);
    return time_graph(kit_.stream, {launches, repeats}, [&](int i) { return attend(i); });
}

}  // namespace

std::vector<AttentionShape> target_attention() {
    std::vector<AttentionShape> shapes;
    for (const auto& [sequences, tokens] : {std::pair{1, 4096}, {16, 4096}, {64, 4096}, {64, 32768}})
        for (const KvType type : {KvType::bf16, KvType::e4m3})
            shapes.push_back({.sequences = sequences, .tokens = tokens, .type = type});
    for (const int tokens : {4096, 16384}) shapes.push_back({.prefill = true, .tokens = tokens, .page_tokens = 64});
    return shapes;
}

Result<Noise<uint16_t>> attention_noise(Kit& kit) {
    std::normal_distribution<float> normal;
    return Noise<uint16_t>::create(kit, [&](auto& random) { return bf16_from_float(normal(random)); });
}

Result<KernelRow> attention_row(Kit& kit, const AttentionShape& shape, const Noise<uint16_t>& noise, int repeats) {
    const DeviceArena::Mark mark = kit.arena.mark();
    Attention attention(kit, shape, noise);
    NIBBLE_CHECK(attention.load());
    KernelRow row{
        fmt::format("{} {} KV", shape.prefill ? "prefill" : "decode", shape.type == KvType::bf16 ? "BF16" : "E4M3"),
        fmt::format("{}x{}, {}/{} of {}", shape.sequences, shape.tokens, shape.q_heads, shape.kv_heads, shape.head_dim),
        shape.prefill ? shape.tokens : shape.sequences};
    NIBBLE_TRY(row.check, attention.check());
    if (row.check.wrong == 0) {
        NIBBLE_TRY(row.time, attention.time(repeats));
    }
    row.bytes = attention.bytes(), row.operations = attention.operations();
    kit.arena.release(mark);
    return row;
}

Status bench_attention(Kit& kit, const std::vector<AttentionShape>& shapes, const Noise<uint16_t>& noise, int repeats,
                       KernelTable& table) {
    double bf16_us = 0;
    for (const AttentionShape& shape : shapes) {
        NIBBLE_TRY(KernelRow row, attention_row(kit, shape, noise, repeats));
        if (shape.type == KvType::bf16)
            bf16_us = row.time.us;
        else
            row.baseline_us = bf16_us;
        table.add(row);
    }
    return Ok{};
}

}  // namespace nibble::bench
