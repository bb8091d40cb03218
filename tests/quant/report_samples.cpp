#include "report_samples.h"

#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::test {
namespace {

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    double uniform() {  // splitmix64
        uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return double((z ^ (z >> 31)) >> 11) * 0x1p-53;
    }
    double bell() { return (uniform() + uniform() + uniform() + uniform() - 2) * std::sqrt(3.0); }

private:
    uint64_t state_;
};

void compare(QuantStats& stats, float weight, float decoded, uint8_t code) {
    const float error = std::abs(weight - decoded);
    ++stats.elements;
    ++stats.codes[code];
    stats.squared_error += double(error) * error;
    stats.squared_weight += double(weight) * weight;
    stats.max_error = std::max(stats.max_error, error);
    stats.zeros += weight != 0 && decoded == 0;
    stats.sign_flips += weight * decoded < 0;
}

struct Block {
    uint8_t scale;
    float decode;
};

// Returns a block with the given maximum: NVFP4 (E4M3 scale) or MX (E8M0 scale).
Block choose_scale(Format format, float amax, float g, float m) {
    if (format == Format::mxfp4) return {mxfp4_scale(amax), 1 / mx_inverse_scale(mxfp4_scale(amax))};
    if (format == Format::mxfp8) return {mxfp8_scale(amax), 1 / mx_inverse_scale(mxfp8_scale(amax))};
    const uint8_t scale = nvfp4_static_scale(amax, g, m, Arithmetic::true_division);
    return {scale, nvfp4_decode_scale(scale, nvfp4_tensor_scale(g, m, Arithmetic::true_division))};
}

void quantize_block(Format format, std::span<const float> w, Block block, QuantStats& stats) {
    for (float x : w) {
        const bool four_bits = format_layout(format).code_bits == 4;
        const uint8_t code =
            four_bits ? e2m1_from_float(x / block.decode) : e4m3_from_float_saturating(x / block.decode);
        compare(stats, x, (four_bits ? e2m1_to_float(code) : e4m3_to_float(code)) * block.decode, code);
        stats.saturated += four_bits && std::abs(x / block.decode) > 6.0f;
    }
    ++stats.blocks;
    ++stats.scales[block.scale];
}

struct Weights {
    double sigma = 0.03, tail = 0.2;
    uint64_t seed = 1;
    int blocks = 96;  // blocks that are really quantized
};

TensorReport quantized(std::string name, int64_t rows, int64_t cols, Format format, bool four_over_six,
                       Weights weights) {
    const int sample_blocks = weights.blocks;
    Random random(weights.seed * 7919 + 13);
    const FormatLayout layout = format_layout(format);
    const int block = layout.block ? layout.block : 32;
    std::vector<float> w(size_t(block) * size_t(sample_blocks));
    for (size_t i = 0; i < w.size(); ++i) {
        const double local = i % size_t(block) == 0 ? 1.6 : 1.0;
        w[i] = round_to_bf16(float(weights.sigma * local * random.bell() * std::exp(weights.tail * random.bell())));
    }
    float g = 0;
    for (float x : w) g = std::max(g, std::abs(x));

    QuantStats stats;
    const float m = four_over_six ? 256.0f : 448.0f;
    for (int b = 0; b < sample_blocks; ++b) {
        const std::span<const float> part(w.data() + size_t(b) * size_t(block), size_t(block));
        if (!layout.block) {
            const float scale = fp8_scale(g, Arithmetic::true_division);
            for (float x : part) compare(stats, x, e4m3_to_float(fp8_code(x, scale)) * scale, fp8_code(x, scale));
            continue;
        }
        float amax = 0;
        for (float x : part) amax = std::max(amax, std::abs(x));
        QuantStats six = stats, four = stats;
        quantize_block(format, part, choose_scale(format, amax, g, m), six);
        if (four_over_six) quantize_block(format, part, choose_scale(format, amax * 1.5f, g, m), four);
        const bool raise = four_over_six && four.squared_error < six.squared_error;
        stats = raise ? four : six;
        stats.raised_blocks += raise;
    }
    const int64_t times = std::max<int64_t>(1, rows * cols / int64_t(w.size()));
    for (int64_t* count :
         {&stats.elements, &stats.blocks, &stats.zeros, &stats.saturated, &stats.sign_flips, &stats.raised_blocks})
        *count *= times;
    for (int i = 0; i < 256; ++i) stats.codes[size_t(i)] *= times, stats.scales[size_t(i)] *= times;
    stats.squared_error *= double(times);
    stats.squared_weight *= double(times);

    TensorReport t{.name = std::move(name), .shape = {rows, cols}, .format = format};
    t.method = std::string(format_name(format)) + (four_over_six ? " static/256 x{1,1.5}" : "");
    t.activation = format == Format::nvfp4 ? ActivationFormat::nvfp4 : ActivationFormat::none;
    t.reason = fmt::format("rule 2 '*weight_quantizer'");
    t.elements = rows * cols;
    t.source_bytes = 2 * rows * cols;
    t.stored_bytes = int64_t(bits_per_element(format, rows, cols) * double(rows * cols) / 8 + 0.5);
    t.add(stats);
    t.amax = g;
    t.tensor_scale = layout.tensor_scale ? nvfp4_tensor_scale(g, m, Arithmetic::true_division) : 1;
    return t;
}

TensorReport carried(std::string name, std::vector<int64_t> shape, std::string reason, DType dtype = DType::bf16) {
    TensorReport t{.name = std::move(name), .shape = std::move(shape), .dtype = dtype, .reason = std::move(reason)};
    t.elements = 1;
    for (int64_t d : t.shape) t.elements *= d;
    t.source_bytes = t.stored_bytes = t.elements * dtype_bytes(dtype);
    return t;
}

QuantReport frame(std::string source, std::string recipe) {
    QuantReport r;
    r.source = std::move(source);
    r.recipe = std::move(recipe);
    r.settings = {{"dialect", "modelopt"}, {"arithmetic", "reciprocal"}, {"max_shard_bytes", 5'000'000'000}};
    r.versions = {{"nibble", "0.1.0"}};
    return r;
}

void add_norms(QuantReport& r, int layer, int64_t hidden) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        r.tensors.push_back(
            carried(fmt::format("model.layers.{}.{}.weight", layer, norm), {hidden}, "not a linear's weight"));
}

// Returns a layer's weights; errors are larger at the first and last layers, as in real models.
Weights layer_weights(int layer, int layers, int role, uint64_t extra = 0) {
    const double edge = std::exp(-3.0 * layer / layers) + 0.6 * std::exp(-4.0 * (layers - 1 - layer) / layers);
    return {0.02 + 0.01 * role, 0.15 + 0.05 * (role % 3) + 0.35 * edge * (role == 1 || role == 6),
            uint64_t(layer * 64 + role) + extra * 100'003, extra ? 24 : 96};
}

QuantReport make_moe_report() {
    QuantReport r =
        frame("/data/models/Qwen3-30B-A3B", "nvfp4_experts_fp8_attention: experts in NVFP4, attention in FP8");
    r.kv = KvFormat::fp8;
    r.tensors.push_back(carried("model.embed_tokens.weight", {151936, 2048}, "not a linear's weight"));
    for (int layer = 0; layer < 48; ++layer) {
        const std::string base = fmt::format("model.layers.{}.", layer);
        int role = 0;
        for (const auto& [name, rows, cols] : std::vector<std::tuple<const char*, int64_t, int64_t>>{
                 {"q_proj", 4096, 2048}, {"k_proj", 512, 2048}, {"v_proj", 512, 2048}, {"o_proj", 2048, 4096}})
            r.tensors.push_back(quantized(fmt::format("{}self_attn.{}.weight", base, name), rows, cols, Format::fp8,
                                          false, layer_weights(layer, 48, role++)));
        r.tensors.push_back(carried(base + "mlp.gate.weight", {128, 2048}, "rule 6 '*mlp.gate.*'"));
        for (int expert = 0; expert < 128; ++expert) {
            role = 4;
            for (const auto& [name, rows, cols] : std::vector<std::tuple<const char*, int64_t, int64_t>>{
                     {"gate_proj", 768, 2048}, {"up_proj", 768, 2048}, {"down_proj", 2048, 768}})
                r.tensors.push_back(quantized(fmt::format("{}mlp.experts.{}.{}.weight", base, expert, name), rows, cols,
                                              Format::nvfp4, true,
                                              layer_weights(layer, 48, role++, uint64_t(expert) + 1)));
        }
        add_norms(r, layer, 2048);
        for (const char* kv : {"k_proj.k_scale", "v_proj.v_scale"})
            r.kv_scales.emplace_back(base + "self_attn." + kv, 0.013f);
    }
    r.tensors.push_back(carried("model.norm.weight", {2048}, "not a linear's weight"));
    r.tensors.push_back(carried("lm_head.weight", {151936, 2048}, "rule 5 '*lm_head*'"));
    r.timing = {.seconds = 214.6,
                .bytes_read = 61'064'000'000,
                .bytes_written = 18'300'000'000,
                .gigabytes_per_second = 0.285,
                .threads = 16,
                .kernels = "avx512",
                .peak_anonymous_bytes = 96'000'000,
                .peak_resident_bytes = 11'200'000'000,
                .resumed_tensors = 4210,
                .finished_at = "2026-01-31T09:05:00Z"};
    r.timing.command =
        "nibble quantize /data/models/Qwen3-30B-A3B -o out --recipe nvfp4_experts_fp8_attention --resume";
    r.timing.verified = "reopened: 18,867 tensors, shapes and checksums equal, all scales finite";
    return r;
}

}  // namespace

QuantReport tiny_report() {
    QuantReport r = frame("/data/models/tiny-llama", "nvfp4: weights and inputs in NVFP4");
    r.tensors.push_back(carried("model.embed_tokens.weight", {512, 64}, "not a linear's weight"));
    for (int layer = 0; layer < 2; ++layer) {
        int role = 0;
        for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
            r.tensors.push_back(quantized(fmt::format("model.layers.{}.{}.weight", layer, name), 64, 64, Format::nvfp4,
                                          false, layer_weights(layer, 2, role)));
            ++role;
        }
        add_norms(r, layer, 64);
    }
    r.tensors.push_back(carried("lm_head.weight", {512, 64}, "rule 5 '*lm_head*'"));
    r.warnings = {"rule 7 '*router*' matched no tensor"};
    r.timing = {.seconds = 0.012,
                .bytes_read = 200'000,
                .bytes_written = 90'000,
                .gigabytes_per_second = 0.02,
                .threads = 2,
                .kernels = "avx2",
                .peak_anonymous_bytes = 4'200'000,
                .peak_resident_bytes = 21'000'000,
                .finished_at = "2026-01-31T09:05:00Z"};
    return r;
}

QuantReport smollm2_report() {
    QuantReport r = frame("/data/models/SmolLM2-135M", "nvfp4_4o6: NVFP4 with the choice of four or six per block");
    r.tensors.push_back(carried("model.embed_tokens.weight", {49152, 576}, "not a linear's weight"));
    const std::vector<std::tuple<const char*, int64_t, int64_t>> linears{
        {"self_attn.q_proj", 576, 576}, {"self_attn.k_proj", 192, 576}, {"self_attn.v_proj", 192, 576},
        {"self_attn.o_proj", 576, 576}, {"mlp.gate_proj", 1536, 576},   {"mlp.up_proj", 1536, 576},
        {"mlp.down_proj", 576, 1536}};
    for (int layer = 0; layer < 30; ++layer) {
        int role = 0;
        for (const auto& [name, rows, cols] : linears)
            r.tensors.push_back(quantized(fmt::format("model.layers.{}.{}.weight", layer, name), rows, cols,
                                          Format::nvfp4, true, layer_weights(layer, 30, role++)));
        add_norms(r, layer, 576);
    }
    r.tensors.push_back(carried("model.norm.weight", {576}, "not a linear's weight"));
    r.timing = {.seconds = 1.84,
                .bytes_read = 269'060'552,
                .bytes_written = 116'400'000,
                .gigabytes_per_second = 0.146,
                .threads = 16,
                .kernels = "avx512",
                .peak_anonymous_bytes = 38'400'000,
                .peak_resident_bytes = 312'000'000,
                .finished_at = "2026-01-31T09:05:00Z"};
    r.timing.command = "nibble quantize /data/models/SmolLM2-135M -o SmolLM2-135M-NVFP4 --recipe nvfp4_4o6";
    r.timing.verified = "reopened: 272 tensors, shapes and checksums equal, all scales finite";
    return r;
}

QuantReport moe_report() {
    static const QuantReport report = make_moe_report();
    return report;
}

QuantReport mixed_report() {
    QuantReport r = frame("mixed", "one format per role");
    for (int layer = 0; layer < 12; ++layer) {
        int role = 0;
        for (Format format : all_formats())
            r.tensors.push_back(quantized(fmt::format("model.layers.{}.mixer.m{}_proj.weight", layer, role), 256, 256,
                                          format, false, layer_weights(layer, 12, role))),
                ++role;
    }
    return r;
}

}  // namespace nibble::test
