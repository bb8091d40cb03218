// How a dense model is divided into fused kernels. With L layers of attention and MLP there are L + 1 of them, and
// attention runs between two of them:
//
//   kernel 0       norm, q/k/v of layer 0
//   kernel i       o_proj of layer i - 1, norm, gate and up, down, norm, q/k/v of layer i
//   kernel L       o_proj of layer L - 1, norm, gate and up, down
//
// The products of a kernel exchange values through memory that holds a sentinel before it is written. Each kernel
// restores the sentinel in the memory of the kernel before (FusedDecode::between and ::used). Three buffers are enough:
// see between().
#include "model/device/fused_decode.h"

#include <algorithm>

namespace nibble {
namespace {

// A non-null address for planning, which reads no memory.
std::byte* somewhere() { return reinterpret_cast<std::byte*>(uintptr_t{4096}); }

bool is_fused(const DeviceLinear& l) { return l.w4a16 || (l.operand.codes && l.activation == ActivationFormat::fp8); }

cuda::FusedProduct product(const DeviceLinear& l) {
    if (l.w4a16) return {.packed = l.records, .factors = l.factors};
    return {.w = l.operand, .input_scale = l.input_scale};
}

}  // namespace

Result<std::optional<DeviceFusedDecode>> DeviceFusedDecode::make(std::span<const DeviceLayer> layers, float eps,
                                                                 int64_t hidden, const DeviceInfo& device) {
    DeviceFusedDecode c;
    c.eps_ = eps, c.hidden_ = hidden, c.device_ = device;
    if (layers.empty() || layers.size() % 2) return std::optional<DeviceFusedDecode>();
    for (size_t i = 0; i < layers.size(); i += 2) {
        const Layer layer{dynamic_cast<const DeviceAttention*>(layers[i].mixer.get()),
                          dynamic_cast<const DeviceMlp*>(layers[i + 1].mixer.get()), layers[i].norm,
                          layers[i + 1].norm};
        const auto plain = [](const DeviceLayer& l) { return l.plain_norm() && l.plain_sum(); };
        if (!plain(layers[i]) || !plain(layers[i + 1]) || !layer.attention || !layer.mlp || !layer.attention->plain() ||
            layer.mlp->config().clamp || layer.mlp->config().gate_scale != 1.0f ||
            layer.attention->in().parts.size() != 1 || layer.mlp->in().parts.size() != 1)
            return std::optional<DeviceFusedDecode>();
        if (!c.layers_.empty() && layer.mlp->config().activation != c.layers_[0].mlp->config().activation)
            return std::optional<DeviceFusedDecode>();
        for (const DeviceLinear* l :
             {&layer.attention->in().parts[0], &layer.attention->out(), &layer.mlp->in().parts[0], &layer.mlp->out()})
            if (!is_fused(*l)) return std::optional<DeviceFusedDecode>();
        if (const DeviceLinear& in = layer.mlp->in().parts[0];
            in.w4a16 && in.interleaved_gate != layer.mlp->config().gated)
            return std::optional<DeviceFusedDecode>();
        c.layers_.push_back(layer);
    }
    const Rows anywhere{.heads = somewhere()};
    for (size_t i = 0; i <= c.layers_.size(); ++i) {
        const std::vector<cuda::FusedProduct> products = c.products(i, anywhere, nullptr);
        if (!cuda::takes_fused_decode(c.fused_decode(products), device)) return std::optional<DeviceFusedDecode>();
        c.between_bytes_ = std::max(c.between_bytes_, cuda::fused_decode_bytes(c.fused_decode(products)));
    }
    NIBBLE_TRY(c.memory_, DeviceArena::create(device.index, c.between_bytes_ * copies + 2 * DeviceArena::alignment));
    NIBBLE_TRY(c.meet_, c.memory_->allocate_array<uint64_t>(1));
    NIBBLE_TRY(c.between_, c.memory_->allocate(c.between_bytes_ * copies));
    NIBBLE_TRY(const Stream stream, Stream::create(device.index));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(c.meet_), 0, sizeof(uint64_t), stream));
    NIBBLE_CHECK(fill_device(c.between_, 0xFF, c.between_bytes_ * copies, stream));
    NIBBLE_CHECK(stream.synchronize());
    return std::optional<DeviceFusedDecode>(std::move(c));
}

std::vector<cuda::FusedProduct> DeviceFusedDecode::products(size_t i, const Rows& rows, int32_t* nonfinite) const {
    std::vector<cuda::FusedProduct> list;
    const auto flag = [&](size_t block) { return nonfinite ? nonfinite + block : nullptr; };
    if (i > 0) {
        const Layer& l = layers_[i - 1];
        cuda::FusedProduct out = product(l.attention->out()), in = product(l.mlp->in().parts[0]),
                           down = product(l.mlp->out());
        out.x = rows.heads;
        in.norm = l.mlp_norm, in.nonfinite = flag(2 * i - 2);
        in.activated = true, in.gated = l.mlp->config().gated;
        if (i == layers_.size()) down.y = rows.down;
        list = {out, in, down};
    }
    if (i < layers_.size()) {
        cuda::FusedProduct qkv = product(layers_[i].attention->in().parts[0]);
        qkv.norm = layers_[i].attention_norm, qkv.y = rows.qkv;
        if (i > 0) qkv.nonfinite = flag(2 * i - 1);
        list.push_back(qkv);
    }
    return list;
}

cuda::FusedDecode DeviceFusedDecode::fused_decode(std::span<const cuda::FusedProduct> products) const {
    return {.products = products, .eps = eps_, .activation = layers_[0].mlp->config().activation, .meet = meet_};
}

// Returns the buffer of the i-th kernel. Kernels alternate between two buffers. The first kernel of the next token
// follows the last kernel of this token, so with an odd number of kernels (an even number of layers) both would use
// buffer 0; the last kernel then uses the third buffer.
std::byte* DeviceFusedDecode::between(size_t i) const {
    const bool own = i == layers_.size() && i % 2 == 0;
    return between_ + (own ? 2 : static_cast<int64_t>(i % 2)) * between_bytes_;
}

Status DeviceFusedDecode::forward(std::byte*& h, std::byte*& other, float* y, int32_t* nonfinite,
                                  DeviceStep& step) const {
    const DeviceScope scope(step);
    int64_t qkv = 0, heads = 0;
    for (const Layer& l : layers_) {
        qkv = std::max(qkv, l.attention->in().rows);
        heads = std::max(heads, l.attention->out().cols);
    }
    Rows rows{.down = y};
    NIBBLE_TRY(rows.qkv, step.scratch.allocate_array<float>(qkv));
    NIBBLE_TRY(rows.heads, step.scratch.allocate(2 * heads));
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(2 * heads));
    for (size_t i = 0; i <= layers_.size(); ++i) {
        const std::vector<cuda::FusedProduct> list = products(i, rows, nonfinite);
        cuda::FusedDecode c = fused_decode(list);
        c.h = h, c.between = between(i), c.used = between(i > 0 ? i - 1 : layers_.size()),
        c.used_bytes = between_bytes_;
        if (i > 0) {
            c.h_out = other;
            std::swap(h, other);
        }
        const DeviceAttention* attention = i < layers_.size() ? layers_[i].attention : nullptr;
        cuda::RopeAppend rope;
        cuda::KvCache cache;
        if (attention) {
            rope = attention->rope_append(rows.qkv, q, step), cache = attention->cache(step);
            c.rope = &rope, c.cache = &cache;
        }
        NIBBLE_CHECK(cuda::run_fused_decode(c, step.overlap, device_, step.stream));
        if (attention) NIBBLE_CHECK(attention->attend(q, rows.heads, step));
    }
    return Ok{};
}

cuda::KernelChoice DeviceFusedDecode::describe() const {
    return {layers_[0].attention->out().w4a16 ? "fused_decode_w4a16_m1" : "sm90_fused_decode_fp8_m1",
            "1 token of a dense model: all products between two attentions are one launch"};
}

int64_t DeviceFusedDecode::scratch_bytes() const {
    int64_t most = 0;
    for (const Layer& l : layers_) most = std::max(most, l.attention->scratch_bytes(1));
    return most + 3 * DeviceArena::alignment;
}

}  // namespace nibble
