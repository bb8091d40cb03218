#include "model/cpu/attend.h"

#include "formats/fp8.h"
#include "model/sequence.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

struct Store {  // rows of one segment that lie in one page
    std::byte* const* pages;
    int64_t position, row, count;
};

}  // namespace

QueryRows read_queries(const AttentionShape& shape, const QueryRows& q, int64_t rows, Workspace& work) {
    const float scale = shape.kv.q_scale;
    if (scale == 0) return q;
    const int64_t cols = int64_t{shape.heads} * shape.kv.k_dim;
    float* read = work.arena.floats(rows * cols);
    work.parallel_rows(rows, 4 * cols, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            for (int64_t d = 0; d < cols; ++d) {
                const float x = e4m3_to_float(fp8_code(q.x[i * q.stride + d], scale)) * scale;
                read[i * cols + d] = shape.bf16 ? round_to_bf16(x) : x;
            }
    });
    return {read, cols};
}

void attend(const Batch& batch, int index, const AttentionShape& shape, const float* q, int64_t q_stride,
            const float* k, int64_t k_stride, const float* v, int64_t v_stride, float* y, Workspace& work,
            KvOwner owner, const KeyChoice& choice) {
    const Arena::Scope scope(work.arena);
    const QueryRows queries = read_queries(shape, {q, q_stride}, batch.rows(), work);
    const int64_t y_stride = int64_t{shape.heads} * shape.kv.v_dim, page_bytes = kv_page_bytes(shape.kv);
    std::vector<Store> stores;
    std::vector<AttentionJob> jobs;
    for (size_t i = 0; i < batch.segments().size(); ++i) {
        const Segment& segment = batch.segments()[i];
        const int64_t rows = static_cast<int64_t>(segment.tokens.size()), row = batch.row(i), start = batch.position(i);
        std::byte* const* pages = nullptr;
        if (segment.sequence) {
            pages = segment.sequence->pages(index).data();
        } else {
            const int64_t count = (rows + kv_page_tokens - 1) / kv_page_tokens;
            auto** scratch = work.arena.array<std::byte*>(count);
            std::byte* memory = nullptr;
            if (owner == KvOwner::own) {
                memory = work.arena.bytes(count * page_bytes);
            } else {
                std::vector<std::byte>& kept = work.shared_pages[{index, segment.tokens.data()}];
                kept.resize(static_cast<size_t>(count * page_bytes));
                memory = kept.data();
            }
            for (int64_t p = 0; p < count; ++p) scratch[p] = memory + p * page_bytes;
            if (owner != KvOwner::borrowed)  // positions past the text's end
                std::memset(scratch[count - 1], 0, static_cast<size_t>(page_bytes));
            pages = scratch;
        }
        for (int64_t at = start; owner != KvOwner::borrowed && at < start + rows;) {
            const int64_t end = std::min(start + rows, (at / kv_page_tokens + 1) * kv_page_tokens);
            stores.push_back({pages, at, row + at - start, end - at});
            at = end;
        }
        jobs.push_back({.q = queries.x + row * queries.stride,
                        .y = y + row * y_stride,
                        .q_stride = queries.stride,
                        .y_stride = y_stride,
                        .rows = rows,
                        .position = start,
                        .pages = pages});
        if (choice.segments.empty()) continue;
        jobs.back().chosen = choice.segments[i].bits;
        jobs.back().chosen_words = choice.segments[i].words;
        jobs.back().chosen_groups = choice.groups;
    }
    work.pool->parallel_for(static_cast<int64_t>(stores.size()), [&](int64_t i) {
        const Store& s = stores[static_cast<size_t>(i)];
        kv_store(shape.kv, s.pages, s.position, s.count, k + s.row * k_stride, k_stride, v + s.row * v_stride,
                 v_stride);
    });
    work.attention->attend(shape, jobs, *work.pool);
}

Status check_borrowed(const Batch& batch, int index, const Workspace& work) {
    for (const Segment& segment : batch.segments())
        if (!segment.sequence && !work.shared_pages.contains({index, segment.tokens.data()}))
            return fail("the keys and values of block {}, which this one attends to, were not kept", index);
    return Ok{};
}

}  // namespace nibble
