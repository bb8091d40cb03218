#include "kernels/cpu/index_cpu.h"

#include <algorithm>
#include <vector>

namespace nibble::cpu {
namespace {

constexpr int64_t rows_per_task = 4;

class IndexRun {
public:
    IndexRun(const AttentionTiles& tiles, const IndexShape& shape, const IndexJob& job)
        : tiles_(tiles), shape_(shape), job_(job) {}

    void row(int64_t i) {
        const int64_t visible = shape_.visible(job_.position + i), count = choice_words(visible);
        uint64_t* to = job_.chosen + i * shape_.groups() * job_.words;
        std::fill_n(to, shape_.groups() * job_.words, 0);
        if (shape_.all(visible)) {
            for (int group = 0; group < shape_.groups(); ++group) set_bits(to + group * job_.words, 0, visible);
            return;
        }
        const int64_t width = count * kv_page_tokens;
        scores_.assign(static_cast<size_t>(shape_.groups() * width), 0.0f);
        for (int64_t tile = 0; tile < count; ++tile)
            for (int head = 0; head < shape_.heads; head += attention_queries) heads(i, head, tile, width);
        for (int group = 0; group < shape_.groups(); ++group)
            choose_keys(shape_, {scores_.data() + group * width, static_cast<size_t>(visible)}, scratch_,
                        to + group * job_.words);
    }

private:
    // Scores of up to attention_queries heads with the keys of a tile. Keys after the visible ones are garbage; their
    // scores are not read.
    void heads(int64_t i, int head, int64_t tile, int64_t width) {
        const int count = std::min(attention_queries, shape_.heads - head);
        const float* queries[attention_queries];
        alignas(64) float s[attention_queries * kv_page_tokens];
        for (int j = 0; j < count; ++j) queries[j] = job_.q + i * job_.q_stride + int64_t{head + j} * shape_.dim;
        const std::byte* page = job_.pages[tile];
        if (shape_.type == KvType::bf16)
            tiles_.scores_bf16(queries, count, reinterpret_cast<const uint16_t*>(page), shape_.dim, shape_.scale, s);
        else
            tiles_.scores(queries, count, reinterpret_cast<const float*>(page), shape_.dim, shape_.scale, s);
        for (int j = 0; j < count; ++j) {
            const float* from = s + j * kv_page_tokens;
            float* to = scores_.data() + tile * kv_page_tokens;
            if (!shape_.weighted) {
                std::copy_n(from, kv_page_tokens, to + int64_t{head + j} * width);
                continue;
            }
            const float w = job_.weights[i * job_.weight_stride + head + j];
            for (int64_t k = 0; k < kv_page_tokens; ++k) to[k] += w * std::max(from[k], 0.0f);
        }
    }

    const AttentionTiles& tiles_;
    const IndexShape& shape_;
    const IndexJob& job_;
    std::vector<float> scores_;  // [groups, width]
    std::vector<uint32_t> scratch_;
};

}  // namespace

void choose(const AttentionTiles& tiles, const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool) {
    const auto tasks_of = [](const IndexJob& job) { return (job.rows + rows_per_task - 1) / rows_per_task; };
    int64_t total = 0;
    for (const IndexJob& job : jobs) total += tasks_of(job);
    pool.parallel_for(total, [&](int64_t i) {
        size_t j = 0;
        for (; i >= tasks_of(jobs[j]); ++j) i -= tasks_of(jobs[j]);
        IndexRun run(tiles, shape, jobs[j]);
        const int64_t end = std::min((i + 1) * rows_per_task, jobs[j].rows);
        for (int64_t row = i * rows_per_task; row < end; ++row) run.row(row);
    });
}

}  // namespace nibble::cpu
