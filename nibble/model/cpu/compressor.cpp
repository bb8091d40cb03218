#include "model/cpu/compressor.h"

#include "kernels/exp.h"
#include "model/cpu/rope.h"

#include <algorithm>
#include <cmath>

namespace nibble {

Result<Compressor> Compressor::load(const ModelConfig& model, const std::string& prefix, const CompressorShape& shape,
                                    WeightSource& weights) {
    Compressor c;
    c.shape_ = shape;
    if (kv_page_tokens % shape.rate != 0 && shape.rate % kv_page_tokens != 0)
        return fail("{}: a rate of {} does not divide {} and is not a multiple of it", prefix, shape.rate,
                    kv_page_tokens);
    NIBBLE_TRY(c.kv_, weights.linear(prefix + ".wkv", c.width(), model.hidden, false));
    NIBBLE_TRY(c.gate_, weights.linear(prefix + ".wgate", c.width(), model.hidden, false));
    NIBBLE_TRY(c.ape_, weights.vector(prefix + ".ape", shape.rate * c.width()));
    NIBBLE_TRY(c.norm_, Norm::load(model, prefix + ".norm.weight", shape.dim, weights));
    c.frequencies_ = rope_frequencies(shape.rope);
    return c;
}

// A page has kv and g of 64 tokens, then the pooled keys.
int64_t Compressor::page_bytes() const {
    const int64_t slots = std::max<int64_t>(1, kv_page_tokens / shape_.rate);
    return (kv_page_tokens * 2 * width() + slots * shape_.dim) * int64_t{sizeof(float)};
}

float* Compressor::token(const Pages& pages, int64_t position) const {
    auto* page = reinterpret_cast<float*>(pages.pages[position / kv_page_tokens] + pages.offset);
    return page + position % kv_page_tokens * 2 * width();
}

float* Compressor::slot(const Pages& pages, int64_t w) const {
    const int64_t last = (w + 1) * shape_.rate - 1;
    auto* page = reinterpret_cast<float*>(pages.pages[last / kv_page_tokens] + pages.offset);
    const int64_t number = shape_.rate < kv_page_tokens ? last % kv_page_tokens / shape_.rate : 0;
    return page + kv_page_tokens * 2 * width() + number * shape_.dim;
}

void Compressor::pool(const Pages& pages, int64_t w, Workspace& work) const {
    const int64_t dim = shape_.dim, wide = width(), rate = shape_.rate;
    struct Token {
        const float *kv, *gate;
    };
    std::vector<Token> tokens;
    const int64_t from = shape_.overlaps ? std::max<int64_t>(0, (w - 1) * rate) : w * rate;
    for (int64_t t = from; t < (w + 1) * rate; ++t) {
        const float* kv = token(pages, t) + (shape_.overlaps && t >= w * rate ? dim : 0);
        tokens.push_back({kv, kv + wide});
    }
    float* y = slot(pages, w);
    for (int64_t d = 0; d < dim; ++d) {
        float most = tokens[0].gate[d];
        for (const Token& t : tokens) most = std::max(most, t.gate[d]);
        float sum = 0, mixed = 0;
        for (const Token& t : tokens) {
            const float weight = exp_f32(t.gate[d] - most);
            sum += weight;
            mixed += weight * t.kv[d];
        }
        y[d] = mixed / sum;
    }
    if (work.bf16()) work.elementwise->round_bf16(y, dim);
    norm_.apply(y, y, work);
    const int64_t half = shape_.rope.dims / 2;
    std::vector<float> cos(static_cast<size_t>(half)), sin(static_cast<size_t>(half));
    for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(w * rate) * frequencies_[static_cast<size_t>(i)];
        cos[static_cast<size_t>(i)] = static_cast<float>(std::cos(double{angle}) * shape_.rope.attention_factor);
        sin[static_cast<size_t>(i)] = static_cast<float>(std::sin(double{angle}) * shape_.rope.attention_factor);
    }
    work.elementwise->rope(y + dim - 2 * half, 1, 2 * half, cos.data(), sin.data(), shape_.rope.dims,
                           shape_.rope.interleaved, work.bf16());
}

Status Compressor::forward(const Batch& batch, const float* x, std::span<const Pages> pages, Workspace& work,
                           Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), wide = width(), rate = shape_.rate;
    float* kv = work.arena.floats(rows * wide);
    float* gate = work.arena.floats(rows * wide);
    NIBBLE_CHECK(kv_.forward(x, rows, kv, work, observer));
    NIBBLE_CHECK(gate_.forward(x, rows, gate, work, observer));
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const int64_t count = std::ssize(batch.segments()[s].tokens), row = batch.row(s), start = batch.position(s);
        const Pages& to = pages[s];
        work.parallel_rows(count, 3 * wide, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                float* at = std::copy_n(kv + (row + i) * wide, wide, token(to, start + i));
                const float* bias = ape_.data() + (start + i) % rate * wide;
                for (int64_t d = 0; d < wide; ++d) at[d] = gate[(row + i) * wide + d] + bias[d];
            }
        });
        const int64_t done = start / rate, complete = (start + count) / rate;
        work.parallel_rows(complete - done, 8 * rate * wide, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) pool(to, done + i, work);
        });
    }
    return Ok{};
}

}  // namespace nibble
