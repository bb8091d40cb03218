#include "cuda/device.h"
#include "kernels/attention_cuda.h"

#include "base/thread_pool.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace nibble::bench {
namespace {

// Tolerance for probabilities of 8 (BF16) or 11 bits, outputs of 8, and FP32 scores.
constexpr double attention_bound = 4e-3;
// Tolerance for base-2 logarithms of sums. The exponents of their terms are FP32 sums of up to 256 products.
constexpr double log_sum_bound = 3e-4;

using cuda::KvType;

struct Shape {
    cuda::KvShape kv;
    int q_heads;
    int64_t window = 0, chunk = 0;
    float cap = 0;
    bool sinks = false;
    std::string name() const {
        return fmt::format("{} KV, {}/{} heads of {}/{}, pages of {}{}{}{}{}",
                           kv.type == KvType::bf16 ? "bf16" : "e4m3", q_heads, kv.kv_heads, kv.k_dim, kv.v_dim,
                           kv.page_tokens, window ? fmt::format(", window {}", window) : "",
                           chunk ? fmt::format(", chunks of {}", chunk) : "",
                           cap > 0 ? fmt::format(", cap {}", cap) : "", sinks ? ", sinks" : "");
    }
    int64_t first_seen(int64_t position) const {
        const int64_t first = window ? std::max<int64_t>(0, position - window + 1) : 0;
        return chunk ? std::max(first, position / chunk * chunk) : first;
    }
    float sink(int head) const { return 2.0f - static_cast<float>(head % 5); }
};

// Query rows [first, first + rows) of a sequence. Row 0 is at position length - rows of the sequence.
struct Piece {
    int sequence;
    int32_t first, rows;
};

// Outputs of query rows.
struct Outputs {
    std::vector<uint16_t> words;  // [rows, q_heads, v_dim]
    std::vector<float> log_sums;  // [rows, q_heads]
};
struct Wanted {
    std::vector<double> out;  // [v_dim]
    double log_sum = 0;
};

// Sequences with their keys and values on the host (as the cache stores them) and in pages in random order, and queries
// for the last positions.
class Sequences {
public:
    static constexpr int32_t most_rows = 150;

    Sequences(Kit& kit, const Shape& shape) : kit_(kit), shape_(shape) {}

    Status make(std::vector<int32_t> lengths);
    Result<Outputs> run(const std::vector<Piece>& pieces, bool overlap);
    Wanted reference(int sequence, int32_t row, int q_head) const;
    int count() const { return static_cast<int>(lengths_.size()); }
    int32_t length(int s) const { return lengths_[static_cast<size_t>(s)]; }
    int32_t rows(int s) const { return std::min(length(s), most_rows); }
    size_t row_words() const { return static_cast<size_t>(shape_.q_heads) * shape_.kv.v_dim; }

private:
    float stored(uint16_t x, const std::vector<float>& scales, int head) const {
        if (shape_.kv.type == KvType::bf16) return bf16_to_float(x);
        const float scale = scales[static_cast<size_t>(head)];
        return e4m3_to_float(e4m3_from_float_saturating(bf16_to_float(x) / scale)) * scale;
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.kv.k_dim)); }

    Kit& kit_;
    Shape shape_;
    std::vector<int32_t> lengths_;
    std::vector<int64_t> first_, first_q_;  // first token and first query row of each sequence
    std::vector<uint16_t> k_, v_, q_;
    std::vector<float> k_scales_, v_scales_;
    std::vector<int32_t> table_;
    int64_t pitch_ = 0;
    cuda::KvCache cache_;
};

Status Sequences::make(std::vector<int32_t> lengths) {
    lengths_ = std::move(lengths);
    const cuda::KvShape& kv = shape_.kv;
    int64_t tokens = 0, pages = 0, queries = 0;
    for (int s = 0; s < count(); ++s) {
        first_.push_back(tokens);
        first_q_.push_back(queries);
        tokens += length(s);
        queries += rows(s);
        const int64_t own = (length(s) + kv.page_tokens - 1) / kv.page_tokens;
        pages += own;
        pitch_ = std::max(pitch_, own);
    }
    // Scores have a spread of about 3, so that some positions matter far more than others.
    k_ = kit_.normal_bf16(tokens * kv.kv_heads * kv.k_dim, 1.0f);
    v_ = kit_.normal_bf16(tokens * kv.kv_heads * kv.v_dim, 1.0f);
    q_ = kit_.normal_bf16(queries * shape_.q_heads * kv.k_dim, 3.0f);
    for (int h = 0; h < kv.kv_heads; ++h) {
        k_scales_.push_back(0.01f + 0.001f * static_cast<float>(h));
        v_scales_.push_back(0.02f - 0.001f * static_cast<float>(h));
    }
    std::vector<int32_t> order(static_cast<size_t>(pages + 3));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), kit_.random);
    table_.assign(static_cast<size_t>(count() * pitch_), -1);
    std::vector<int64_t> slots;
    size_t next = 0;
    for (int s = 0; s < count(); ++s)
        for (int32_t t = 0; t < length(s); ++t) {
            int32_t& page = table_[static_cast<size_t>(s * pitch_ + t / kv.page_tokens)];
            if (t % kv.page_tokens == 0) page = order[next++];
            slots.push_back(int64_t{page} * kv.page_tokens + t % kv.page_tokens);
        }
    cache_.shape = kv;
    const int64_t bytes = (pages + 3) * kv.stride();
    NIBBLE_TRY(cache_.pages, kit_.arena.allocate(bytes));
    NIBBLE_CHECK(fill_device(cache_.pages, 0xFF, bytes, kit_.stream));  // NaN in both types
    NIBBLE_TRY(cache_.k_scales, kit_.upload(k_scales_));
    NIBBLE_TRY(cache_.v_scales, kit_.upload(v_scales_));
    NIBBLE_TRY(const std::byte* k, kit_.upload_bytes(k_));
    NIBBLE_TRY(const std::byte* v, kit_.upload_bytes(v_));
    NIBBLE_TRY(const int64_t* device_slots, kit_.upload(slots));
    NIBBLE_CHECK(cuda::append_kv(cache_, k, v, device_slots, tokens, kit_.stream));
    return kit_.stream.synchronize();
}

Result<Outputs> Sequences::run(const std::vector<Piece>& pieces, bool overlap) {
    const DeviceArena::Mark mark = kit_.arena.mark();
    const cuda::KvShape& kv = shape_.kv;
    std::vector<cuda::AttentionSegment> segments;
    std::vector<int32_t> table;
    std::vector<uint16_t> q;
    const int64_t q_row = int64_t{shape_.q_heads} * kv.k_dim;
    int32_t all_rows = 0, longest = 1;
    for (const Piece& p : pieces) {
        const int32_t position = length(p.sequence) - rows(p.sequence) + p.first;
        segments.push_back({all_rows, p.rows, position, static_cast<int32_t>(segments.size())});
        all_rows += p.rows;
        longest = std::max(longest, position + p.rows);
        // Pages that no query of the piece sees are invalid.
        std::vector<int32_t> row(table_.begin() + p.sequence * pitch_, table_.begin() + (p.sequence + 1) * pitch_);
        for (int64_t i = 0; (i + 1) * kv.page_tokens <= shape_.first_seen(position); ++i)
            row[static_cast<size_t>(i)] = INT32_MAX / 2;
        table.insert(table.end(), row.begin(), row.end());
        const auto at = q_.begin() + (first_q_[static_cast<size_t>(p.sequence)] + p.first) * q_row;
        q.insert(q.end(), at, at + p.rows * q_row);
    }
    NIBBLE_TRY(const cuda::AttentionPlan plan, cuda::plan_attention({.kv = kv,
                                                                     .q_heads = shape_.q_heads,
                                                                     .softmax_scale = scale(),
                                                                     .window = shape_.window,
                                                                     .chunk = shape_.chunk,
                                                                     .soft_cap = shape_.cap,
                                                                     .table_pitch = pitch_,
                                                                     .most_segments = std::ssize(pieces),
                                                                     .most_rows = all_rows,
                                                                     .most_tokens = longest},
                                                                    kit_.device));
    NIBBLE_TRY(const cuda::AttentionWork work, cuda::attention_work(plan, segments));
    if (std::ssize(work.words) > plan.work_words) return fail("the work list is longer than its plan says");
    cuda::AttentionInput in;
    NIBBLE_TRY(in.q, kit_.upload_bytes(q));
    NIBBLE_TRY(in.table, kit_.upload(table));
    NIBBLE_TRY(in.work, kit_.upload(work.words));
    if (shape_.sinks) {
        std::vector<float> sinks;
        for (int h = 0; h < shape_.q_heads; ++h) sinks.push_back(shape_.sink(h));
        NIBBLE_TRY(in.sinks, kit_.upload(sinks));
    }
    const size_t words = static_cast<size_t>(all_rows) * row_words();
    const auto bytes = static_cast<int64_t>((words + 64) * 2);
    NIBBLE_TRY(std::byte * device_out, kit_.poisoned(bytes));
    const int64_t sums = int64_t{all_rows} * shape_.q_heads;
    NIBBLE_TRY(in.log_sums, kit_.arena.allocate_array<float>(sums));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(in.log_sums), 0xFF, 4 * sums, kit_.stream));
    NIBBLE_TRY(std::byte * workspace, kit_.arena.allocate(plan.workspace_bytes));
    NIBBLE_CHECK(fill_device(workspace, 0xFF, plan.workspace_bytes, kit_.stream));
    NIBBLE_CHECK(cuda::attend(plan, in, cache_, device_out, workspace, overlap, kit_.stream));
    Outputs out;
    NIBBLE_TRY(out.words, kit_.download<uint16_t>(device_out, static_cast<int64_t>(words + 64)));
    NIBBLE_TRY(out.log_sums, kit_.download<float>(in.log_sums, sums));
    kit_.arena.release(mark);
    for (size_t i = words; i < out.words.size(); ++i)
        if (out.words[i] != 0xA5A5) return fail("attention wrote past its output");
    out.words.resize(words);
    return out;
}

Wanted Sequences::reference(int s, int32_t row, int q_head) const {
    const cuda::KvShape& kv = shape_.kv;
    const int head = q_head / (shape_.q_heads / kv.kv_heads);
    const uint16_t* q =
        q_.data() + ((first_q_[static_cast<size_t>(s)] + row) * shape_.q_heads + q_head) * int64_t{kv.k_dim};
    const int64_t position = length(s) - rows(s) + row;
    const int64_t from = shape_.first_seen(position);
    std::vector<double> scores(static_cast<size_t>(position - from + 1)), out(static_cast<size_t>(kv.v_dim));
    const auto element = [&](const std::vector<uint16_t>& x, int dim, int64_t t, int d) {
        return x[static_cast<size_t>(((first_[static_cast<size_t>(s)] + t) * kv.kv_heads + head) * dim + d)];
    };
    for (size_t t = 0; t < scores.size(); ++t)
        for (int d = 0; d < kv.k_dim; ++d)
            scores[t] += double{bf16_to_float(q[d])} *
                         stored(element(k_, kv.k_dim, from + static_cast<int64_t>(t), d), k_scales_, head) *
                         double{scale()};
    if (shape_.cap > 0)
        for (double& score : scores) score = shape_.cap * std::tanh(score / shape_.cap);
    double top = *std::max_element(scores.begin(), scores.end()), sum = 0;
    if (shape_.sinks) {
        top = std::max<double>(top, shape_.sink(q_head));
        sum = std::exp(shape_.sink(q_head) - top);
    }
    for (size_t t = 0; t < scores.size(); ++t) {
        const double p = std::exp(scores[t] - top);
        sum += p;
        for (int d = 0; d < kv.v_dim; ++d)
            out[static_cast<size_t>(d)] +=
                p * stored(element(v_, kv.v_dim, from + static_cast<int64_t>(t), d), v_scales_, head);
    }
    for (double& o : out) o /= sum;
    return {std::move(out), top * std::numbers::log2e + std::log2(sum)};
}

// `few`: of all ways to cut the rows, only tests prompts together, and the last rows with a chunk.
Result<std::vector<Check>> check_shape(const Shape& shape, std::vector<int32_t> lengths, Kit& kit, bool few) {
    Check error{shape.name() + ": distance from double precision"}, bits{shape.name() + ": same bits however cut"};
    Check sums{shape.name() + ": logarithms of sums"};
    const DeviceArena::Mark mark = kit.arena.mark();
    Sequences data(kit, shape);
    NIBBLE_CHECK(data.make(std::move(lengths)));
    std::vector<Piece> whole;
    std::vector<size_t> begin;  // begin of a sequence's words
    size_t at = 0;
    for (int s = 0; s < data.count(); ++s) {
        whole.push_back({s, 0, data.rows(s)});
        begin.push_back(at);
        at += static_cast<size_t>(data.rows(s)) * data.row_words();
    }
    NIBBLE_TRY(const auto all, data.run(whole, false));

    ThreadPool pool;
    std::vector<double> distance(whole.size()), sum_distance(whole.size());
    pool.parallel_for(data.count(), [&](int64_t s) {
        const int32_t rows = data.rows(static_cast<int>(s));
        for (const int32_t row : {0, rows / 2, rows - 1}) {
            double square = 0, norm = 0;
            for (int h = 0; h < shape.q_heads; ++h) {
                const Wanted want = data.reference(static_cast<int>(s), row, h);
                const size_t dims = want.out.size(), first = begin[static_cast<size_t>(s)],
                             of_row = static_cast<size_t>(row) * shape.q_heads + static_cast<size_t>(h);
                for (size_t d = 0; d < dims; ++d) {
                    const double got = bf16_to_float(all.words[first + of_row * dims + d]);
                    square += (got - want.out[d]) * (got - want.out[d]);
                    norm += want.out[d] * want.out[d];
                }
                const double off = std::abs(all.log_sums[first / dims + of_row] - want.log_sum);
                double& worst = sum_distance[static_cast<size_t>(s)];
                worst = off <= worst ? worst : off;
            }
            const double here = std::sqrt(square / norm);
            double& worst = distance[static_cast<size_t>(s)];
            worst = here <= worst ? worst : here;  // keeps NaN
        }
    });
    error.compared = static_cast<int64_t>(all.words.size());
    sums.compared = static_cast<int64_t>(all.log_sums.size());
    for (size_t s = 0; s < distance.size(); ++s) {
        if (!(sum_distance[s] <= log_sum_bound))
            sums.note(fmt::format("sequence of {} tokens: {:.2e}", data.length(static_cast<int>(s)), sum_distance[s]));
        sums.worst = std::max(sums.worst, sum_distance[s]);
        if (!(distance[s] <= attention_bound))
            error.note(fmt::format("sequence of {} tokens: {:.2e}", data.length(static_cast<int>(s)), distance[s]));
        error.worst = std::max(error.worst, distance[s]);
    }

    const auto compare = [&](const std::vector<Piece>& pieces, bool overlap) -> Status {
        NIBBLE_TRY(const auto out, data.run(pieces, overlap));
        size_t from = 0;
        for (const Piece& p : pieces) {
            const size_t words = static_cast<size_t>(p.rows) * data.row_words();
            const size_t to = begin[static_cast<size_t>(p.sequence)] + static_cast<size_t>(p.first) * data.row_words();
            for (size_t i = 0; i < words; ++i, ++bits.compared)
                if (out.words[from + i] != all.words[to + i])
                    bits.note(fmt::format("sequence of {}, rows {} + {} among {} pieces, word {} of row {}: {} not {}",
                                          data.length(p.sequence), p.first, p.rows, pieces.size(), i % data.row_words(),
                                          i / data.row_words(), bf16_to_float(out.words[from + i]),
                                          bf16_to_float(all.words[to + i])));
            const size_t dims = static_cast<size_t>(shape.kv.v_dim);
            if (!std::equal(&out.log_sums[from / dims], &out.log_sums[from / dims] + words / dims,
                            &all.log_sums[to / dims]))
                bits.note(fmt::format("sequence of {}, rows {} + {} among {} pieces: logarithms of sums",
                                      data.length(p.sequence), p.first, p.rows, pieces.size()));
            from += words;
        }
        return Ok{};
    };
    std::vector<Piece> last, chunks;
    for (int s = 0; s < data.count(); ++s) {
        last.push_back({s, data.rows(s) - 1, 1});
        if (!few) {
            NIBBLE_CHECK(compare({whole[static_cast<size_t>(s)]}, s % 2));
            NIBBLE_CHECK(compare({last.back()}, s % 2 == 0));
        }
        const int32_t a = data.rows(s) / 3, b = std::max(a + 1, data.rows(s) * 5 / 7);
        if (data.rows(s) < 3) continue;
        chunks.push_back({s, a, b - a});
        if (few) continue;
        for (const Piece& p : {Piece{s, 0, a}, Piece{s, a, b - a}, Piece{s, b, data.rows(s) - b}})
            if (p.rows > 0) NIBBLE_CHECK(compare({p}, true));
        NIBBLE_CHECK(compare({{s, data.rows(s) / 2, 1}}, true));  // a decode step; later positions are in the cache
    }
    NIBBLE_CHECK(compare(last, true));
    std::ranges::reverse(last);
    last.insert(last.begin() + 1, chunks.begin(), chunks.end());
    NIBBLE_CHECK(compare(last, true));
    std::ranges::reverse(whole);
    NIBBLE_CHECK(compare(whole, true));
    kit.arena.release(mark);
    return std::vector{error, sums, bits};
}

Result<std::vector<Check>> check_attention(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                           uint64_t seed, Extent size) {
    std::vector<Check> results;
    Kit kit(stream, device, arena, seed);
    const bool small = size != Extent::all, tiny = size == Extent::tiny;
    std::vector<int32_t> lengths{1, 2, 15, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700};
    if (!small) lengths.insert(lengths.end(), {1023, 1500, 4096, 9000});
    const auto add = [&](Shape shape, const std::vector<int32_t>& with) -> Status {
        NIBBLE_TRY(auto checks, check_shape(shape, with, kit, tiny));
        results.insert(results.end(), checks.begin(), checks.end());
        return Ok{};
    };
    for (const KvType type : {KvType::bf16, KvType::e4m3}) {
        if (tiny) {  // heads of 128 and 64 have a prefill kernel; 600 positions are two groups that are merged
            const std::vector<int32_t> three{17, 130, 600};
            NIBBLE_CHECK(add({{type, 2, 16}, 8}, three));
            NIBBLE_CHECK(add({{type, 1, 64, 64, 64}, 3}, three));
            NIBBLE_CHECK(add({{type, 2, 16, 128, 128, int64_t{1} << 16}, 6, 70}, three));
            NIBBLE_CHECK(add({{type, 1, 32, 192, 128}, 1}, three));
            NIBBLE_CHECK(add({{type, 1, 64, 256, 256}, 4, 600}, three));
            NIBBLE_CHECK(add({{type, 2, 16}, 8, 0, 100, 5.0f, true}, three));
            continue;
        }
        NIBBLE_CHECK(add({{type, 2, 16}, 8}, lengths));
        if (small) lengths.resize(9);
        if (lengths.size() > 15) lengths.resize(15);  // long sequences are tested once per type only
        if (!small) NIBBLE_CHECK(add({{type, 8, 64}, 32}, lengths));
        NIBBLE_CHECK(add({{type, 3, 64, 64, 64}, 9}, lengths));
        NIBBLE_CHECK(add({{type, 2, 16, 128, 128, int64_t{1} << 16}, 6, 70}, lengths));
        NIBBLE_CHECK(add({{type, 1, 64, 16, 16}, 4}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 24, 16}, 2, 16}, lengths));
        NIBBLE_CHECK(add({{type, 4, 32, 192, 128}, 4}, lengths));
        NIBBLE_CHECK(add({{type, 1, 64, 256, 256}, 4, 600}, lengths));
        NIBBLE_CHECK(add({{type, 1, 64, 80, 80}, 20}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 64, 64}, 16, 128, 0, 0.0f, true}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 128, 128}, 8, 0, 0, 5.0f, true}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 128, 128}, 8, 300, 200}, lengths));
        NIBBLE_CHECK(add({{type, 1, 64, 256, 256}, 4, 0, 0, 5.0f}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 192, 128}, 8, 129, 0, 0.0f, true}, lengths));
        NIBBLE_CHECK(add({{type, 2, 64, 512, 512}, 8}, lengths));
        lengths = {1, 2, 15, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700};
        if (!small) lengths.insert(lengths.end(), {1023, 1500, 4096, 9000});
    }
    return results;
}

}  // namespace

TEST(CudaKernels, Attention) { expect_all(check_attention(kit().stream, kit().device, kit().arena, 1, extent())); }

}  // namespace nibble::bench
