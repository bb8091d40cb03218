#include "train/train_shapes.h"

#include "architecture/model_config.h"
#include "architecture/tensor_list.h"
#include "base/philox.h"
#include "checkpoint/random_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>

namespace nibble {
namespace {

struct LlamaShape {
    std::string_view name;
    int hidden, layers, heads, kv_heads, intermediate, vocab;
};
constexpr std::array llama_shapes{
    LlamaShape{"60m", 512, 12, 8, 4, 1536, 16384}, LlamaShape{"124m", 768, 12, 12, 4, 2048, 49152},
    LlamaShape{"350m", 1024, 24, 16, 8, 2816, 49152}, LlamaShape{"1b", 2048, 16, 32, 8, 8192, 128256}};

constexpr uint64_t start_role = uint64_t{0x57} << 56;  // role of Philox streams; combined with the parameter's id

// Returns a uniform number in (0, 1) from 53 bits.
double unit(uint32_t high, uint32_t low) {
    return (static_cast<double>((uint64_t{high} << 32 | low) >> 11) + 0.5) * 0x1p-53;
}

struct Draw {
    double uniform, normal;
};

Draw draw(const PhiloxStream& stream, int64_t element) {
    const PhiloxBlock b = stream.block(static_cast<uint64_t>(element));
    const double u = unit(b.word[0], b.word[1]), v = unit(b.word[2], b.word[3]);
    return {u, std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v)};
}

enum class Start : uint8_t { one, zero, normal, residual, conv, a_log, dt_bias };

// `plus_one`: norms multiply by 1 + w.
Start start_of(const CheckpointTensor& t, bool plus_one) {
    const std::string& name = t.name;
    if (name.ends_with(".A_log")) return Start::a_log;
    if (name.ends_with(".dt_bias")) return Start::dt_bias;
    if (name.ends_with(".bias") || name.ends_with("_bias")) return Start::zero;
    if (name.ends_with("conv1d.weight")) return Start::conv;
    if (t.shape.size() < 2) return plus_one ? Start::zero : Start::one;  // norms, D
    for (const char* end : {".o_proj.weight", ".down_proj.weight", ".out_proj.weight", ".w2.weight"})
        if (name.ends_with(end)) return Start::residual;
    return Start::normal;
}

}  // namespace

Result<Json> train_shape(std::string_view name, int64_t layers) {
    Json config;
    const auto own = std::ranges::find(llama_shapes, name, &LlamaShape::name);
    if (own != llama_shapes.end()) {
        config = {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"hidden_size", own->hidden},
                  {"num_hidden_layers", own->layers},
                  {"num_attention_heads", own->heads},
                  {"num_key_value_heads", own->kv_heads},
                  {"head_dim", own->hidden / own->heads},
                  {"intermediate_size", own->intermediate},
                  {"vocab_size", own->vocab},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"tie_word_embeddings", false},
                  {"max_position_embeddings", 8192},
                  {"hidden_act", "silu"}};
    } else {
        auto known = shape_config(name);
        if (!known.ok()) {
            std::string names;
            for (const LlamaShape& s : llama_shapes) names += std::string(s.name) + ", ";
            std::string others = known.error().message();
            others = others.substr(others.find("choices: ") + 9);
            return fail("unknown shape '{}'; choices: {}{}", name, names, others);
        }
        config = *std::move(known);
    }
    const auto all = config["num_hidden_layers"].get<int64_t>();
    if (layers < 0 || layers > all) return fail("the shape {} has {} layers, not {}", name, all, layers);
    if (layers > 0) {
        config["num_hidden_layers"] = layers;
        if (config.contains("hybrid_override_pattern"))
            config["hybrid_override_pattern"] =
                config["hybrid_override_pattern"].get<std::string>().substr(0, static_cast<size_t>(layers));
    }
    return config;
}

Result<std::shared_ptr<Parameters>> random_start(Json config, DType published, uint64_t seed, ThreadPool& pool) {
    NIBBLE_TRY(const auto checkpoint, random_checkpoint(std::move(config)));
    NIBBLE_TRY(auto parameters, Parameters::copy(*checkpoint, published, pool));
    NIBBLE_TRY(const ModelConfig model, model_config(checkpoint->config()));
    const double layers = model.blocks.back().layer + 1;
    std::set<std::string> plain_norms;
    for (TensorEntry& entry : tensor_list(model))
        if (entry.role == TensorRole::plain_norm) plain_norms.insert(std::move(entry.name));
    for (size_t id = 0; id < parameters->count(); ++id) {
        const CheckpointTensor& t = parameters->tensors()[id];
        const Start start = start_of(t, model.norm_plus_one && !plain_norms.contains(t.name));
        const std::span<float> w = parameters->master(id);
        const PhiloxStream stream{seed, start_role | id};
        const double taps = t.shape.empty() ? 1.0 : static_cast<double>(t.shape.back());
        constexpr int64_t run = 1 << 14;
        const int64_t n = std::ssize(w);
        pool.parallel_for((n + run - 1) / run, [&](int64_t part) {
            for (int64_t i = part * run; i < std::min(n, (part + 1) * run); ++i) {
                double x = start == Start::one ? 1.0 : 0.0;
                if (start == Start::normal) x = 0.02 * draw(stream, i).normal;
                if (start == Start::residual) x = 0.02 * draw(stream, i).normal / std::sqrt(2 * layers);
                if (start == Start::conv) x = (2 * draw(stream, i).uniform - 1) / std::sqrt(taps);
                if (start == Start::a_log) x = std::log(1 + 15 * draw(stream, i).uniform);
                if (start == Start::dt_bias) {
                    const double dt = std::exp(std::log(0.001) + draw(stream, i).uniform * std::log(100.0));
                    x = dt + std::log(-std::expm1(-dt));
                }
                w[static_cast<size_t>(i)] = static_cast<float>(x);
            }
        });
    }
    parameters->publish(pool);
    return parameters;
}

}  // namespace nibble
