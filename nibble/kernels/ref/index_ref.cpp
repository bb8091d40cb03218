#include "kernels/ref/index_ref.h"

#include "kernels/kv_page.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::ref {
namespace {

float index_score(const IndexShape& shape, const KvShape& keys, const IndexJob& job, int64_t row, int head,
                  int64_t key) {
    const float* q = job.q + row * job.q_stride + int64_t{head} * shape.dim;
    const std::byte* page = job.pages[key / kv_page_tokens];
    float dot = 0;
    for (int d = 0; d < shape.dim; ++d) dot = std::fma(q[d], kv_k(keys, page, 0, d, key % kv_page_tokens), dot);
    return dot * shape.scale;
}

void choose_row(const IndexShape& shape, const IndexJob& job, int64_t row) {
    const KvShape keys = shape.keys();
    uint64_t* to = job.chosen + row * shape.groups() * job.words;
    std::fill_n(to, shape.groups() * job.words, 0);
    std::vector<float> scores(static_cast<size_t>(shape.visible(job.position + row)));
    std::vector<uint32_t> scratch;
    for (int group = 0; group < shape.groups(); ++group, to += job.words) {
        for (size_t s = 0; s < scores.size(); ++s) {
            const auto key = static_cast<int64_t>(s);
            if (!shape.weighted) {
                scores[s] = index_score(shape, keys, job, row, group, key);
                continue;
            }
            scores[s] = 0;
            for (int head = 0; head < shape.heads; ++head)
                scores[s] += job.weights[row * job.weight_stride + head] *
                             std::max(index_score(shape, keys, job, row, head, key), 0.0f);
        }
        choose_keys(shape, scores, scratch, to);
    }
}

}  // namespace

void choose(const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool) {
    for (const IndexJob& job : jobs) pool.parallel_for(job.rows, [&](int64_t i) { choose_row(shape, job, i); });
}

}  // namespace nibble::ref
