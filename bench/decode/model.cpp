#include "decode/model.h"

#include "formats/minifloat.h"
#include "kernels/w4a16_record.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

constexpr int pool_records = 16384, page_tokens = 64;

// Random codes under block scales between 0.5 and 1.9.
std::vector<uint8_t> random_records(std::mt19937_64& random) {
    std::vector<uint8_t> pool(size_t{pool_records} * w4a16::record_bytes);
    for (size_t i = 0; i < pool.size(); ++i) {
        const auto bits = static_cast<uint32_t>(random());
        pool[i] = i % w4a16::record_bytes < w4a16::record_code_bytes
                      ? static_cast<uint8_t>(bits)
                      : w4a16::pack_scale(static_cast<uint8_t>(0x30 + bits % 16));
    }
    return pool;
}

template <class T>
Result<T*> upload(const std::vector<T>& host, DeviceArena& arena, const Stream& stream) {
    NIBBLE_TRY(T * p, arena.allocate_array<T>(static_cast<int64_t>(host.size())));
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                static_cast<int64_t>(host.size() * sizeof(T)), stream));
    return p;
}

// The pool over and over, from another place each time.
Status fill(std::byte* to, int64_t bytes, const std::byte* pool, int64_t piece, int64_t& at, int64_t unit,
            const Stream& stream) {
    while (bytes > 0) {
        at = (at + 977 * unit) % piece;
        const int64_t now = std::min(bytes, piece - at);
        NIBBLE_CHECK(copy_on_device(to, pool + at, now, stream));
        to += now, bytes -= now;
    }
    return Ok{};
}

}  // namespace

Result<DecodeModel::Product> DecodeModel::product(int n, int k, int64_t at, bool gated, const DeviceInfo& device) {
    Product p{.at = at, .bytes = cuda::packed_bytes(n, k)};
    NIBBLE_TRY(p.plan, cuda::plan_matmul({.m = shape_.sequences, .n = n, .k = k, .gated = gated}, device));
    return p;
}

Result<DecodeModel> DecodeModel::make(const ModelShape& shape, const DeviceInfo& device, DeviceArena& arena,
                                      const Stream& stream) {
    DecodeModel m;
    m.shape_ = shape;
    const int64_t tokens = shape.sequences, hidden = shape.hidden;
    std::mt19937_64 random(1);
    const std::vector<uint8_t> pool = random_records(random);
    NIBBLE_TRY(uint8_t * device_pool, upload(pool, arena, stream));
    m.pool_ = reinterpret_cast<std::byte*>(device_pool);
    NIBBLE_TRY(m.qkv_, m.product(shape.qkv(), shape.hidden, 0, false, device));
    NIBBLE_TRY(m.out_, m.product(shape.hidden, shape.q_heads * head_dim, m.qkv_.bytes, false, device));
    NIBBLE_TRY(m.up_, m.product(2 * shape.intermediate, shape.hidden, m.out_.at + m.out_.bytes, shape.fuse, device));
    NIBBLE_TRY(m.down_, m.product(shape.hidden, shape.intermediate, m.up_.at + m.up_.bytes, false, device));
    m.layer_bytes_ = m.down_.at + m.down_.bytes;
    NIBBLE_TRY(m.head_, m.product(shape.vocabulary, shape.hidden, 0, false, device));
    const int64_t all = shape.layers * m.layer_bytes_ + m.head_.bytes;
    NIBBLE_TRY(m.weights_, arena.allocate(all));
    int64_t place = 0;
    NIBBLE_CHECK(fill(m.weights_, all, m.pool_, int64_t{pool_records} * w4a16::record_bytes, place, w4a16::record_bytes,
                      stream));
    int64_t workspace = 0, permuted = 0;
    for (const Product* p : {&m.qkv_, &m.out_, &m.up_, &m.down_, &m.head_}) {
        workspace = std::max(workspace, p->plan.workspace_bytes);
        permuted = std::max(permuted, p->plan.permuted_bytes);
    }
    NIBBLE_TRY(m.workspace_, arena.allocate(workspace));
    NIBBLE_CHECK(fill_device(m.workspace_, 0, workspace, stream));

    // A short table stands for the embedding: one row a sequence is read, whatever its size.
    constexpr int rows = 1024;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> table(static_cast<size_t>(rows * hidden));
    for (uint16_t& v : table) v = bf16_from_float(normal(random));
    NIBBLE_TRY(uint16_t * device_table, upload(table, arena, stream));
    m.table_ = reinterpret_cast<std::byte*>(device_table);
    std::vector<int32_t> chosen, lengths(static_cast<size_t>(tokens), shape.context), positions(lengths);
    for (int32_t t = 0; t < tokens; ++t) chosen.push_back(t * 37 % rows);
    for (int32_t& p : positions) --p;
    NIBBLE_TRY(m.tokens_, upload(chosen, arena, stream));

    // Pages of a sequence follow each other, so those of the first ones do not depend on how many there are.
    const int64_t pitch = (shape.context + page_tokens - 1) / page_tokens;
    std::vector<int32_t> pages;
    std::vector<int64_t> slots;
    for (int64_t s = 0; s < tokens; ++s) {
        for (int64_t p = 0; p < pitch; ++p) pages.push_back(static_cast<int32_t>(s * pitch + p));
        slots.push_back((s * pitch + (shape.context - 1) / page_tokens) * page_tokens +
                        (shape.context - 1) % page_tokens);
    }
    m.cache_.shape = {shape.kv, shape.kv_heads, page_tokens};
    m.cache_bytes_ = tokens * pitch * m.cache_.shape.page_bytes();
    NIBBLE_TRY(m.cache_.pages, arena.allocate(m.cache_bytes_ * shape.layers));
    std::vector<uint8_t> kv(size_t{16} << 20);
    for (size_t i = 0; i < kv.size(); i += 2) {
        // BF16 of magnitude 2^-8 ... 2; E4M3 without NaN.
        const auto bits = static_cast<uint32_t>(random());
        const uint32_t word = shape.kv == cuda::KvType::bf16 ? (bits & 0x83FFu) | 0x3C00u : bits & 0xBFBFu;
        kv[i] = static_cast<uint8_t>(word), kv[i + 1] = static_cast<uint8_t>(word >> 8);
    }
    NIBBLE_TRY(uint8_t * device_kv, upload(kv, arena, stream));
    for (int layer = 0; layer < shape.layers; ++layer) {
        int64_t at = layer * 4096;
        NIBBLE_CHECK(fill(m.cache_.pages + layer * m.cache_bytes_, m.cache_bytes_,
                          reinterpret_cast<const std::byte*>(device_kv), static_cast<int64_t>(kv.size()), at, 256,
                          stream));
    }
    const std::vector<float> kv_scales(static_cast<size_t>(shape.kv_heads), 0.01f);
    NIBBLE_TRY(m.cache_.k_scales, upload(kv_scales, arena, stream));
    m.cache_.v_scales = m.cache_.k_scales;

    std::vector<cuda::AttentionSegment> segments;
    for (int32_t i = 0; i < shape.sequences; ++i) segments.push_back({i, 1, shape.context - 1, i});
    NIBBLE_TRY(m.attention_, cuda::plan_attention({.kv = m.cache_.shape,
                                                   .q_heads = shape.q_heads,
                                                   .softmax_scale = 0.0883883476f,
                                                   .table_pitch = pitch,
                                                   .most_segments = shape.sequences,
                                                   .most_rows = shape.sequences,
                                                   .most_tokens = shape.context},
                                                  device));
    NIBBLE_TRY(const cuda::AttentionWork work, cuda::attention_work(m.attention_, segments));
    NIBBLE_TRY(m.attention_workspace_, arena.allocate(m.attention_.workspace_bytes));
    NIBBLE_TRY(m.attention_input_.table, upload(pages, arena, stream));
    NIBBLE_TRY(m.attention_input_.work, upload(work.words, arena, stream));
    m.rope_ = {.tokens = tokens, .q_heads = shape.q_heads, .rope_dims = head_dim};
    NIBBLE_TRY(m.rope_.positions, upload(positions, arena, stream));
    NIBBLE_TRY(m.rope_.slots, upload(slots, arena, stream));
    std::vector<float> cos(static_cast<size_t>(shape.context) * head_dim / 2), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
        const double angle = static_cast<double>(i / 64) * std::pow(5e5, -static_cast<double>(i % 64) / 64);
        cos[i] = static_cast<float>(std::cos(angle)), sin[i] = static_cast<float>(std::sin(angle));
    }
    NIBBLE_TRY(m.rope_.cos, upload(cos, arena, stream));
    NIBBLE_TRY(m.rope_.sin, upload(sin, arena, stream));
    const std::vector<float> ones(static_cast<size_t>(hidden), 1.0f), scale{0.007f};
    NIBBLE_TRY(m.norm_, upload(ones, arena, stream));
    NIBBLE_TRY(m.scale_, upload(scale, arena, stream));

    const int64_t padded = (tokens + 127) / 128 * 128;
    const int64_t widest = std::max(2 * shape.intermediate, shape.qkv());
    NIBBLE_TRY(m.h_, arena.allocate(tokens * hidden * 2));
    NIBBLE_TRY(m.other_h_, arena.allocate(tokens * hidden * 2));
    NIBBLE_TRY(m.x_, arena.allocate(padded * hidden * 2));
    NIBBLE_TRY(m.wide_, arena.allocate(padded * shape.intermediate * 2));
    NIBBLE_TRY(m.heads_, arena.allocate(padded * shape.q_heads * head_dim * 2));
    NIBBLE_TRY(m.rope_.q, arena.allocate(tokens * shape.q_heads * head_dim * 2));
    NIBBLE_TRY(m.permuted_, arena.allocate(permuted));
    NIBBLE_TRY(m.y_, arena.allocate_array<float>(tokens * widest));
    NIBBLE_TRY(m.logits_, arena.allocate_array<float>(tokens * shape.vocabulary));
    NIBBLE_TRY(m.next_, arena.allocate_array<int32_t>(tokens));
    m.attention_input_.q = m.rope_.q;
    NIBBLE_TRY(m.qkv_out_, arena.allocate_array<float>(tokens * shape.qkv()));
    m.rope_.qkv = m.qkv_out_;
    NIBBLE_CHECK(stream.synchronize());
    return m;
}

Status DecodeModel::multiply(const Product& p, int layer, const std::byte* x, float* y, bool overlap,
                             const Stream& stream, std::byte* gated, const cuda::MatmulOptions::Norm& norm) const {
    return cuda::matmul(p.plan, x, {p.plan.problem.n, p.plan.problem.k, weights_ + layer * layer_bytes_ + p.at},
                        {.tensor_scale = scale_, .activated = gated, .activation = Activation::silu}, y, workspace_,
                        {.overlap = overlap, .norm = norm}, stream);
}

Status DecodeModel::step(bool overlap, const Stream& stream, Part without) const {
    const int64_t tokens = shape_.sequences, hidden = shape_.hidden;
    const auto has = [&](Part part) { return part != without; };
    std::byte *h = h_, *other = other_h_;
    // Makes x, or hands over what a product makes it of itself.
    const auto norm = [&](const float* update, const Product& next) -> Result<cuda::MatmulOptions::Norm> {
        if (!has(Part::norm)) return cuda::MatmulOptions::Norm{};
        if (next.plan.norms && shape_.fuse) {
            const cuda::MatmulOptions::Norm inside{h, update, norm_, 1e-5f, other};
            if (update) std::swap(h, other);
            return inside;
        }
        NIBBLE_CHECK(cuda::add_norm({.tokens = tokens,
                                     .width = hidden,
                                     .h = h,
                                     .update = update,
                                     .weight = norm_,
                                     .eps = 1e-5f,
                                     .out = {x_, next.plan.tiling.tokens}},
                                    overlap, stream));
        return cuda::MatmulOptions::Norm{};
    };
    NIBBLE_CHECK(cuda::embed(table_, tokens_, tokens, hidden, h_, overlap, stream));
    for (int layer = 0; layer < shape_.layers; ++layer) {
        NIBBLE_TRY(const auto first, norm(layer ? y_ : nullptr, qkv_));
        if (has(Part::qkv)) NIBBLE_CHECK(multiply(qkv_, layer, x_, qkv_out_, overlap, stream, nullptr, first));
        cuda::KvCache cache = cache_;
        cache.pages += layer * cache_bytes_;
        if (has(Part::rope)) NIBBLE_CHECK(cuda::rope_append(rope_, cache, overlap, stream));
        if (has(Part::attention))
            NIBBLE_CHECK(
                cuda::attend(attention_, attention_input_, cache, heads_, attention_workspace_, overlap, stream));
        if (has(Part::out)) {
            const std::byte* heads = heads_;
            if (out_.plan.permuted_bytes) {
                NIBBLE_CHECK(cuda::permute(out_.plan, heads_, permuted_, {overlap}, stream));
                heads = permuted_;
            }
            NIBBLE_CHECK(multiply(out_, layer, heads, y_, overlap, stream));
        }
        NIBBLE_TRY(const auto second, norm(y_, up_));
        if (has(Part::up)) {
            // Apart, gate and up are two halves: a product that ends with an activation would take it of both.
            const bool inside = shape_.fuse && up_.plan.activates();
            NIBBLE_CHECK(multiply(up_, layer, x_, y_, overlap, stream, inside ? wide_ : nullptr, second));
            if (!inside)
                NIBBLE_CHECK(cuda::activate(Activation::silu, true, y_, 0, tokens, shape_.intermediate,
                                            {wide_, down_.plan.tiling.tokens}, overlap, stream, shape_.fuse));
        }
        if (has(Part::down)) NIBBLE_CHECK(multiply(down_, layer, wide_, y_, overlap, stream));
    }
    NIBBLE_TRY(const auto last, norm(y_, head_));
    if (has(Part::head)) NIBBLE_CHECK(multiply(head_, shape_.layers, x_, logits_, overlap, stream, nullptr, last));
    return cuda::argmax(logits_, tokens, shape_.vocabulary, next_, overlap, stream);
}

double DecodeModel::bytes() const {
    double total = static_cast<double>(head_.bytes) + static_cast<double>(cache_bytes_) * shape_.layers;
    for (const Product* p : {&qkv_, &out_, &up_, &down_}) total += static_cast<double>(p->bytes) * shape_.layers;
    return total;
}

}  // namespace nibble::bench
