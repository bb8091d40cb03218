#include "architecture/tensor_list.h"

#include <array>
#include <utility>

namespace nibble {

std::string bias_of_norm(std::string weight) {
    constexpr std::string_view ending = "weight";
    if (weight.ends_with(ending)) weight.resize(weight.size() - ending.size());
    return weight + "bias";
}

namespace {

class TensorLister {
public:
    explicit TensorLister(const ModelConfig& model) : model_(model), hidden_(model.hidden) {}

    void add(std::string name, std::vector<int64_t> shape, TensorRole role) {
        list.push_back({std::move(name), std::move(shape), role});
    }
    void norm(std::string name, int64_t width) {
        if (!name.empty()) add(std::move(name), {width}, TensorRole::norm);
    }
    // A norm of the residual stream.
    void stream_norm(const std::string& name) {
        norm(name, hidden_);
        if (!name.empty() && model_.norm_bias) add(bias_of_norm(name), {hidden_}, TensorRole::bias);
    }
    void block(const BlockConfig& b) {
        stream_norm(b.norm);
        // The second norm of a feed-forward network is listed before its matrices, that of attention after them.
        const bool feed_forward =
            std::holds_alternative<MlpConfig>(b.mixer) || std::holds_alternative<MoeConfig>(b.mixer);
        if (feed_forward) stream_norm(b.post_norm);
        std::visit([&](const auto& mixer) { this->mixer(b, mixer); }, b.mixer);
        if (!feed_forward) stream_norm(b.post_norm);
        if (!b.output_scale.empty()) add(b.output_scale, {1}, TensorRole::norm);
    }

    std::vector<TensorEntry> list;

private:
    void linear(const std::string& module, int64_t rows, int64_t cols) {
        add(module + ".weight", {rows, cols}, TensorRole::linear);
    }
    // The matrices of all experts, each [rows, cols], in one tensor.
    void stack(std::string name, int64_t experts, int64_t rows, int64_t cols) {
        list.push_back({std::move(name), {experts * rows, cols}, TensorRole::linear, experts});
    }
    void bias(const std::string& module, int64_t rows) { add(module + ".bias", {rows}, TensorRole::bias); }

    void mixer(const BlockConfig& b, const AttentionConfig& a) {
        std::vector<std::pair<std::string, int64_t>> in{
            {b.name(a.q_proj), a.q_rows()}, {b.name(a.k_proj), a.kv_cols()}, {b.name(a.v_proj), a.v_cols()}};
        if (!a.qkv_proj.empty()) in = {{b.name(a.qkv_proj), a.q_rows() + a.kv_cols() + a.v_cols()}};
        if (a.v_proj.empty()) in.pop_back();
        if (a.kv_block >= 0) in.resize(1);
        for (const auto& [module, rows] : in) linear(module, rows, hidden_);
        if (!a.head_gate.empty()) linear(b.name(a.head_gate), a.heads, hidden_);
        linear(b.name(a.o_proj), hidden_, a.out_cols());
        if (a.indexer && a.indexer->owner < 0) indexer(b, *a.indexer, 0);
        if (!a.sinks.empty()) add(b.name(a.sinks), {a.heads}, TensorRole::bias);
        if (a.qkv_bias)
            for (const auto& [module, rows] : in) bias(module, rows);
        if (a.out_bias) bias(b.name(a.o_proj), hidden_);
        if (a.qk_norm == QkNorm::none || a.qk_norm == QkNorm::late_plain) return;
        const bool joined = a.qk_norm == QkNorm::joined;
        norm(b.name(a.q_norm) + ".weight", joined ? a.q_cols() : a.head_dim);
        if (a.kv_block < 0) norm(b.name(a.k_norm) + ".weight", joined ? a.kv_cols() : a.head_dim);
    }
    void indexer(const BlockConfig& b, const IndexerConfig& i, int64_t q_rank) {
        const int64_t q_rows = int64_t{i.heads} * i.dim;
        if (i.weighted) {
            linear(b.name("indexer.wq_b"), q_rows, q_rank);
            linear(b.name("indexer.wk"), i.dim, hidden_);
            linear(b.name("indexer.weights_proj"), i.heads, hidden_);
            add(b.name("indexer.k_norm.weight"), {i.dim}, TensorRole::plain_norm);
            bias(b.name("indexer.k_norm"), i.dim);
            return;
        }
        linear(b.name("index_q_proj"), q_rows, hidden_);
        linear(b.name("index_k_proj"), i.dim, hidden_);
        norm(b.name("index_q_norm.weight"), i.dim);
        norm(b.name("index_k_norm.weight"), i.dim);
    }
    void mixer(const BlockConfig& b, const LatentAttentionConfig& a) {
        const int64_t k_dim = a.nope_dim + a.rope.dims, q_rows = a.heads * k_dim, kv_a_rows = a.kv_rank + a.rope.dims;
        const std::string first = b.name(a.q_rank > 0 ? "q_a_proj" : "q_proj");
        linear(first, a.q_rank > 0 ? a.q_rank : q_rows, hidden_);
        if (a.q_rank > 0) {
            norm(b.name("q_a_layernorm.weight"), a.q_rank);
            linear(b.name("q_b_proj"), q_rows, a.q_rank);
        }
        linear(b.name("kv_a_proj_with_mqa"), kv_a_rows, hidden_);
        norm(b.name("kv_a_layernorm.weight"), a.kv_rank);
        linear(b.name("kv_b_proj"), int64_t{a.heads} * (a.nope_dim + a.v_dim), a.kv_rank);
        linear(b.name("o_proj"), hidden_, int64_t{a.heads} * a.v_dim);
        if (a.indexer && a.indexer->owner < 0) indexer(b, *a.indexer, a.q_rank);
        if (!a.bias) return;
        bias(first, a.q_rank > 0 ? a.q_rank : q_rows);
        bias(b.name("kv_a_proj_with_mqa"), kv_a_rows);
        bias(b.name("o_proj"), hidden_);
    }
    void mlp(const std::string& prefix, const MlpConfig& m, int64_t outer) {
        const int64_t width = m.intermediate;
        const std::string down = prefix + "." + m.down_proj;
        std::vector<std::pair<std::string, int64_t>> in;
        if (m.gated) in.emplace_back(prefix + "." + m.gate_proj, width);
        in.emplace_back(prefix + "." + m.up_proj, width);
        if (!m.gate_up_proj.empty()) in = {{prefix + "." + m.gate_up_proj, 2 * width}};
        linear(in[0].first, in[0].second, outer);
        const bool numbered = m.down_proj == "w2";  // the names are w1, w2, w3
        if (numbered) linear(down, outer, width);
        for (size_t i = 1; i < in.size(); ++i) linear(in[i].first, in[i].second, outer);
        if (!numbered) linear(down, outer, width);
        if (!m.bias) return;
        for (const auto& [module, rows] : in) bias(module, rows);
        bias(down, outer);
    }
    void mixer(const BlockConfig& b, const MlpConfig& m) { mlp(b.prefix, m, hidden_); }
    void mixer(const BlockConfig& b, const MoeConfig& m) {
        add(b.name(m.gate) + ".weight", {m.experts, hidden_}, TensorRole::router);
        if (m.gate_bias) bias(b.name(m.gate), m.experts);
        if (!m.router_scale.empty()) norm(b.name(m.router_scale), hidden_);
        if (!m.experts_norm.empty()) norm(b.name(m.experts_norm) + ".weight", hidden_);
        if (!m.expert_scale.empty()) norm(b.name(m.expert_scale), m.experts);
        const std::string experts = b.name(m.experts_name);
        if (m.stacked) {
            const int64_t width = m.expert.intermediate;
            stack(experts + ".gate_up_proj", m.experts, 2 * width, hidden_);
            add(experts + ".gate_up_proj_bias", {m.experts, 2 * width}, TensorRole::bias);
            stack(experts + ".down_proj", m.experts, hidden_, width);
            add(experts + ".down_proj_bias", {m.experts, hidden_}, TensorRole::bias);
        }
        for (int e = 0; e < (m.stacked ? 0 : m.experts); ++e)
            mlp(fmt::format("{}.{}", experts, e), m.expert, m.latent > 0 ? m.latent : hidden_);
        if (m.latent > 0) {
            linear(b.name("fc1_latent_proj"), m.latent, hidden_);
            linear(b.name("fc2_latent_proj"), hidden_, m.latent);
        }
        if (m.selection_bias) add(b.name(m.selection_bias_name), {m.experts}, TensorRole::choice);
        if (m.shared.intermediate > 0) mlp(b.name(m.shared_name), m.shared, hidden_);
        if (m.shared_gate) add(b.name(m.shared_gate_name) + ".weight", {1, hidden_}, TensorRole::router);
    }
    void mixer(const BlockConfig& b, const PerLayerInputConfig& m) {
        if (m.index == 0) {
            add(m.table, {m.vocab, int64_t{m.layers} * m.width}, TensorRole::embedding);
            linear(m.projection, int64_t{m.layers} * m.width, hidden_);
            norm(m.norm, m.width);
        }
        linear(b.name(m.gate), m.width, hidden_);
        linear(b.name(m.out), hidden_, m.width);
    }
    void mixer(const BlockConfig& b, const ParallelConfig& m) {
        for (const Branch& branch : m.branches)
            block({.index = b.index,
                   .layer = b.layer,
                   .prefix = branch.prefix,
                   .norm = branch.norm,
                   .post_norm = branch.post_norm,
                   .mixer = branch.mixer});
    }
    void mixer(const BlockConfig& b, const MambaConfig& m) {
        linear(b.name("in_proj"), m.inner() + m.channels() + m.heads, hidden_);
        linear(b.name("out_proj"), hidden_, m.inner());
        add(b.name("conv1d.weight"), {m.channels(), 1, m.conv}, TensorRole::convolution);
        if (m.conv_bias) bias(b.name("conv1d"), m.channels());
        for (const char* name : {"A_log", "D", "dt_bias"}) add(b.name(name), {m.heads}, TensorRole::state);
        if (m.norm != MambaConfig::Norm::none) norm(b.name("norm.weight"), m.inner());
        if (!m.projection_bias) return;
        bias(b.name("in_proj"), m.inner() + m.channels() + m.heads);
        bias(b.name("out_proj"), hidden_);
    }
    void mixer(const BlockConfig& b, const ShortConvConfig& s) {
        linear(b.name("in_proj"), 3 * hidden_, hidden_);
        linear(b.name("out_proj"), hidden_, hidden_);
        add(b.name("conv.weight"), {hidden_, 1, s.taps}, TensorRole::convolution);
        if (!s.bias) return;
        bias(b.name("in_proj"), 3 * hidden_);
        bias(b.name("out_proj"), hidden_);
        bias(b.name("conv"), hidden_);
    }
    void delta_by_channel(const BlockConfig& b, const GatedDeltaConfig& g) {
        const std::array<int64_t, 3> widths{g.keys(), g.keys(), g.inner()};
        for (size_t i = 0; i < widths.size(); ++i) {
            const char letter = "qkv"[i];
            linear(b.name(fmt::format("{}_proj", letter)), widths[i], hidden_);
            add(b.name(fmt::format("{}_conv1d.weight", letter)), {widths[i], 1, g.conv}, TensorRole::convolution);
        }
        linear(b.name("f_a_proj"), g.key_dim, hidden_);
        linear(b.name("f_b_proj"), g.keys(), g.key_dim);
        linear(b.name("g_a_proj"), g.value_dim, hidden_);
        linear(b.name("g_b_proj"), g.inner(), g.value_dim);
        linear(b.name("b_proj"), g.value_heads, hidden_);
        linear(b.name("o_proj"), hidden_, g.inner());
        add(b.name("A_log"), {1, 1, g.value_heads, 1}, TensorRole::state);
        add(b.name("dt_bias"), {g.keys()}, TensorRole::state);
        add(b.name("o_norm.weight"), {g.value_dim}, TensorRole::plain_norm);
    }
    void mixer(const BlockConfig& b, const GatedDeltaConfig& g) {
        if (g.by_channel) return delta_by_channel(b, g);
        if (g.by_key_head) {
            linear(b.name("in_proj_qkvz"), g.channels() + g.inner(), hidden_);
            add(b.name("in_proj_ba.weight"), {2 * g.value_heads, hidden_}, TensorRole::router);
        } else {
            linear(b.name("in_proj_qkv"), g.channels(), hidden_);
            linear(b.name("in_proj_z"), g.inner(), hidden_);
            for (const char* name : {"in_proj_b.weight", "in_proj_a.weight"})
                add(b.name(name), {g.value_heads, hidden_}, TensorRole::router);
        }
        linear(b.name("out_proj"), hidden_, g.inner());
        add(b.name("conv1d.weight"), {g.channels(), 1, g.conv}, TensorRole::convolution);
        for (const char* name : {"A_log", "dt_bias"}) add(b.name(name), {g.value_heads}, TensorRole::state);
        add(b.name("norm.weight"), {g.value_dim}, TensorRole::plain_norm);
    }

    const ModelConfig& model_;
    int64_t hidden_;
};

}  // namespace

std::vector<TensorEntry> tensor_list(const ModelConfig& model) {
    TensorLister lister(model);
    lister.add(model.embedding, {model.vocab, model.hidden}, TensorRole::embedding);
    for (const BlockConfig& block : model.blocks) lister.block(block);
    lister.stream_norm(model.norm);
    if (model.head_bias) lister.add("lm_head.bias", {model.vocab}, TensorRole::bias);
    if (model.head != model.embedding) lister.add(model.head, {model.vocab, model.hidden}, TensorRole::head);
    return std::move(lister.list);
}

std::vector<TensorEntry> prediction_tensor_list(const ModelConfig& model) {
    TensorLister lister(model);
    if (!model.prediction) return {};
    const PredictionConfig& p = *model.prediction;
    lister.add(p.projection + ".weight", {model.hidden, 2 * model.hidden}, TensorRole::linear);
    for (const std::string& norm : {p.embedding_norm, p.hidden_norm, p.norm}) lister.norm(norm, model.hidden);
    for (const BlockConfig& block : p.blocks) lister.block(block);
    return std::move(lister.list);
}

}  // namespace nibble
