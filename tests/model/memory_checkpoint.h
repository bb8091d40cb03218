// A checkpoint in memory with tensors that a test adds.
#pragma once

#include "checkpoint/checkpoint.h"
#include "formats/minifloat.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

namespace nibble::test {

class MemoryCheckpoint : public Checkpoint {
public:
    explicit MemoryCheckpoint(Json config) : config_(std::move(config)) {}

    // Adds a tensor of random BF16 numbers around `mean`.
    void add(const std::string& name, std::vector<int64_t> shape, float deviation = 0.05f, float mean = 0.0f) {
        CheckpointTensor t;
        t.name = name;
        t.shape = std::move(shape);
        const int64_t n = t.rows() * t.cols();
        std::normal_distribution<float> normal(mean, deviation);
        std::vector<uint16_t> codes;
        for (int64_t i = 0; i < n; ++i) codes.push_back(bf16_from_float(normal(random_)));
        data_.emplace_back(codes);
        tensors_.push_back(std::move(t));
    }
    // Adds the tensors of a llama-like model according to the config.
    void add_llama() {
        const auto get = [&](const char* key) { return config_.at(key).get<int64_t>(); };
        const int64_t hidden = get("hidden_size"), heads = get("num_attention_heads"), dim = get("head_dim");
        const int64_t kv = get("num_key_value_heads"), inner = get("intermediate_size");
        add("model.embed_tokens.weight", {get("vocab_size"), hidden}, 1.0f);
        for (int64_t l = 0; l < get("num_hidden_layers"); ++l) {
            const std::string p = fmt::format("model.layers.{}.", l);
            add(p + "input_layernorm.weight", {hidden}, 0.1f, 1.0f);
            add(p + "self_attn.q_proj.weight", {heads * dim, hidden}, 0.2f);
            add(p + "self_attn.k_proj.weight", {kv * dim, hidden}, 0.2f);
            add(p + "self_attn.v_proj.weight", {kv * dim, hidden}, 0.2f);
            add(p + "self_attn.o_proj.weight", {hidden, heads * dim}, 0.2f);
            add(p + "post_attention_layernorm.weight", {hidden}, 0.1f, 1.0f);
            add(p + "mlp.gate_proj.weight", {inner, hidden}, 0.2f);
            add(p + "mlp.up_proj.weight", {inner, hidden}, 0.2f);
            add(p + "mlp.down_proj.weight", {hidden, inner}, 0.2f);
        }
        add("model.norm.weight", {hidden}, 0.1f, 1.0f);
        add("lm_head.weight", {get("vocab_size"), hidden}, 0.2f);
    }
    void set(const std::string& name, size_t element, float value) {
        data_[index(name)][element] = bf16_from_float(value);
    }
    void scale(const std::string& name, float factor) {
        for (uint16_t& code : data_[index(name)]) code = bf16_from_float(bf16_to_float(code) * factor);
    }
    void remove(const std::string& name) {
        const size_t i = index(name);
        tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(i));
        data_.erase(data_.begin() + static_cast<ptrdiff_t>(i));
    }
    CheckpointTensor& tensor(const std::string& name) { return tensors_[index(name)]; }
    Json& json() { return config_; }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t i, int64_t begin, int64_t count, Matrix&) const override {
        const MatrixView all{DType::bf16, tensors_[i].rows(), tensors_[i].cols(),
                             reinterpret_cast<const std::byte*>(data_[i].data())};
        return all.panel(begin, count);
    }
    Result<QuantView> read_quant(size_t, int64_t, int64_t, QuantMatrix&) const override {
        return fail("nothing is quantized here");
    }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

private:
    size_t index(const std::string& name) const {
        for (size_t i = 0; i < tensors_.size(); ++i)
            if (tensors_[i].name == name) return i;
        throw std::runtime_error(name);
    }
    std::filesystem::path path_ = "memory";
    Json config_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<std::vector<uint16_t>> data_;
    std::mt19937 random_{5};
};

inline Json small_llama() {
    return Json{{"model_type", "llama"},
                {"vocab_size", 48},
                {"hidden_size", 32},
                {"intermediate_size", 48},
                {"num_hidden_layers", 3},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 16},
                {"rms_norm_eps", 1e-5},
                {"hidden_act", "silu"},
                {"max_position_embeddings", 4096}};
}

inline std::shared_ptr<MemoryCheckpoint> small_checkpoint(const Json& config = small_llama()) {
    auto checkpoint = std::make_shared<MemoryCheckpoint>(config);
    checkpoint->add_llama();
    return checkpoint;
}

}  // namespace nibble::test
