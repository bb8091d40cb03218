#include "architecture/tensor_list.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

namespace nibble {

std::string bias_of_norm(std::string weight) {
    constexpr std::string_view ending = "weight";
    if (weight.ends_with(ending)) weight.resize(weight.size() - ending.size());
    return weight + "bias";
}

RowSegment rows_in_runs(int64_t rows) {
    const int64_t run = std::gcd(rows, int64_t{16});
    return {rows, RowSegment::Division::even, rows / std::max<int64_t>(run, 1), "runs of 16 rows"};
}

namespace {

using Division = RowSegment::Division;
using Segments = std::vector<RowSegment>;

RowSegment by_heads(int64_t rows, int64_t heads) { return {rows, Division::equal, heads, "attention heads"}; }
RowSegment by_kv_heads(int64_t rows, int64_t heads) { return {rows, Division::copied, heads, "key and value heads"}; }
RowSegment by_experts(int64_t rows, int64_t experts) { return {rows, Division::even, experts, "experts"}; }
RowSegment by_state_heads(int64_t rows, int64_t heads) { return {rows, Division::equal, heads, "Mamba heads"}; }
RowSegment by_groups(int64_t rows, int64_t groups) { return {rows, Division::copied, groups, "Mamba groups"}; }
RowSegment by_key_heads(int64_t rows, int64_t heads) { return {rows, Division::equal, heads, "delta rule key heads"}; }

class TensorLister {
public:
    explicit TensorLister(const ModelConfig& model) : model_(model), hidden_(model.hidden) {}

    // Without segments every rank has the whole tensor.
    void add(std::string name, std::vector<int64_t> shape, TensorRole role, Segments segments = {}) {
        if (segments.empty()) segments.push_back({shape.front()});
        list.push_back({std::move(name), std::move(shape), role, 0, std::move(segments)});
    }
    void norm(std::string name, int64_t width) {
        if (!name.empty()) add(std::move(name), {width}, TensorRole::norm);
    }
    // A norm of the residual stream.
    void stream_norm(const std::string& name) {
        norm(name, hidden_);
        if (!name.empty() && model_.norm_bias) add(bias_of_norm(name), {hidden_}, TensorRole::bias);
    }
    // The tensors of hyper-connections.
    void hyper(const std::string& name, int64_t outputs, int64_t scales) {
        add(name + "_fn", {outputs, model_.width()}, TensorRole::hyper);
        add(name + "_base", {outputs}, TensorRole::hyper);
        add(name + "_scale", {scales}, TensorRole::hyper);
    }
    void block(const BlockConfig& b) {
        if (!b.hyper.empty()) {
            const int64_t streams = model_.hyper->streams;
            hyper(b.hyper, (2 + streams) * streams, 3);
        }
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
    void linear(const std::string& module, int64_t rows, int64_t cols, Segments segments) {
        add(module + ".weight", {rows, cols}, TensorRole::linear, std::move(segments));
    }
    // A linear whose outputs are the residual stream, or another row that all ranks need.
    void out_linear(const std::string& module, int64_t rows, int64_t cols) {
        linear(module, rows, cols, {rows_in_runs(rows)});
    }
    // The matrices of all experts, each [rows, cols], in one tensor.
    void stack(std::string name, int64_t experts, int64_t rows, int64_t cols) {
        list.push_back({std::move(name),
                        {experts * rows, cols},
                        TensorRole::linear,
                        experts,
                        {by_experts(experts * rows, experts)}});
    }
    void bias(const std::string& module, int64_t rows, Segments segments) {
        add(module + ".bias", {rows}, TensorRole::bias, std::move(segments));
    }

    struct Input {
        std::string module;
        int64_t rows;
        Segments segments;
    };

    void mixer(const BlockConfig& b, const AttentionConfig& a) {
        const RowSegment q = by_heads(a.q_rows(), a.heads), k = by_kv_heads(a.kv_cols(), a.kv_heads),
                         v = by_kv_heads(a.v_cols(), a.kv_heads);
        std::vector<Input> in{{b.name(a.q_proj), a.q_rows(), {q}},
                              {b.name(a.k_proj), a.kv_cols(), {k}},
                              {b.name(a.v_proj), a.v_cols(), {v}}};
        if (!a.qkv_proj.empty()) in = {{b.name(a.qkv_proj), a.q_rows() + a.kv_cols() + a.v_cols(), {q, k, v}}};
        if (a.v_proj.empty()) in.pop_back();
        if (a.kv_block >= 0) in.resize(1);
        for (const Input& i : in) linear(i.module, i.rows, hidden_, i.segments);
        if (!a.head_gate.empty()) linear(b.name(a.head_gate), a.heads, hidden_, {by_heads(a.heads, a.heads)});
        out_linear(b.name(a.o_proj), hidden_, a.out_cols());
        if (a.indexer && a.indexer->owner < 0) indexer(b, *a.indexer, 0);
        if (!a.sinks.empty()) add(b.name(a.sinks), {a.heads}, TensorRole::bias, {by_heads(a.heads, a.heads)});
        if (a.qkv_bias)
            for (const Input& i : in) bias(i.module, i.rows, i.segments);
        if (a.out_bias) bias(b.name(a.o_proj), hidden_, {rows_in_runs(hidden_)});
        if (a.qk_norm == QkNorm::none || a.qk_norm == QkNorm::late_plain) return;
        const bool joined = a.qk_norm == QkNorm::joined;
        norm(b.name(a.q_norm) + ".weight", joined ? a.q_cols() : a.head_dim);
        if (a.kv_block < 0) norm(b.name(a.k_norm) + ".weight", joined ? a.kv_cols() : a.head_dim);
    }
    // Every rank has the whole indexer, because all heads use its choice.
    void indexer(const BlockConfig& b, const IndexerConfig& i, int64_t q_rank) {
        const int64_t q_rows = int64_t{i.heads} * i.dim;
        if (i.weighted) {
            linear(b.name("indexer.wq_b"), q_rows, q_rank, {});
            linear(b.name("indexer.wk"), i.dim, hidden_, {});
            linear(b.name("indexer.weights_proj"), i.heads, hidden_, {});
            add(b.name("indexer.k_norm.weight"), {i.dim}, TensorRole::plain_norm);
            bias(b.name("indexer.k_norm"), i.dim, {});
            return;
        }
        linear(b.name("index_q_proj"), q_rows, hidden_, {});
        linear(b.name("index_k_proj"), i.dim, hidden_, {});
        norm(b.name("index_q_norm.weight"), i.dim);
        norm(b.name("index_k_norm.weight"), i.dim);
    }
    void mixer(const BlockConfig& b, const LatentAttentionConfig& a) {
        const int64_t k_dim = a.nope_dim + a.rope.dims, q_rows = a.heads * k_dim, kv_a_rows = a.kv_rank + a.rope.dims;
        const std::string first = b.name(a.q_rank > 0 ? "q_a_proj" : "q_proj");
        const Segments q = {by_heads(q_rows, a.heads)};
        const Segments first_rows = a.q_rank > 0 ? Segments{{a.q_rank}} : q;
        linear(first, a.q_rank > 0 ? a.q_rank : q_rows, hidden_, first_rows);
        if (a.q_rank > 0) {
            norm(b.name("q_a_layernorm.weight"), a.q_rank);
            linear(b.name("q_b_proj"), q_rows, a.q_rank, q);
        }
        linear(b.name("kv_a_proj_with_mqa"), kv_a_rows, hidden_, {});
        norm(b.name("kv_a_layernorm.weight"), a.kv_rank);
        const int64_t kv_b_rows = int64_t{a.heads} * (a.nope_dim + a.v_dim);
        linear(b.name("kv_b_proj"), kv_b_rows, a.kv_rank, {by_heads(kv_b_rows, a.heads)});
        out_linear(b.name("o_proj"), hidden_, int64_t{a.heads} * a.v_dim);
        if (a.indexer && a.indexer->owner < 0) indexer(b, *a.indexer, a.q_rank);
        if (!a.bias) return;
        bias(first, a.q_rank > 0 ? a.q_rank : q_rows, first_rows);
        bias(b.name("kv_a_proj_with_mqa"), kv_a_rows, {});
        bias(b.name("o_proj"), hidden_, {rows_in_runs(hidden_)});
    }
    void compressor(const std::string& prefix, int64_t dim, const CompressedAttentionConfig& a) {
        const int64_t width = a.overlaps ? 2 * dim : dim;
        for (const char* name : {".wkv", ".wgate"}) linear(prefix + name, width, hidden_, {});
        add(prefix + ".ape", {a.rate, width}, TensorRole::hyper);
        norm(prefix + ".norm.weight", dim);
    }
    void mixer(const BlockConfig& b, const CompressedAttentionConfig& a) {
        const int64_t q_cols = int64_t{a.heads} * a.dim, out_rows = int64_t{a.groups} * a.out_rank;
        linear(b.name("wq_a"), a.q_rank, hidden_, {});
        norm(b.name("q_norm.weight"), a.q_rank);
        linear(b.name("wq_b"), q_cols, a.q_rank, {});
        linear(b.name("wkv"), a.dim, hidden_, {});
        norm(b.name(a.kv_norm) + ".weight", a.dim);
        add(b.name("attn_sink"), {a.heads}, TensorRole::bias);
        add(b.name("wo_a") + ".weight", {out_rows, q_cols / a.groups}, TensorRole::router);
        linear(b.name("wo_b"), hidden_, out_rows, {});
        if (a.rate > 0) compressor(b.name("compressor"), a.dim, a);
        if (!a.indexer) return;
        compressor(b.name("indexer.compressor"), a.indexer->dim, a);
        linear(b.name("indexer.wq_b"), int64_t{a.indexer->heads} * a.indexer->dim, a.q_rank, {});
        linear(b.name("indexer.weights_proj"), a.indexer->heads, hidden_, {});
    }
    // `whole`: all matrices are on one rank, the rank that has the expert.
    void mlp(const std::string& prefix, const MlpConfig& m, int64_t outer, std::optional<RowSegment> whole = {}) {
        const int64_t width = m.intermediate;
        const std::string down = prefix + "." + m.down_proj;
        const auto rows_of = [&](int64_t rows, Segments segments) {
            if (!whole) return segments;
            RowSegment all = *whole;
            all.rows = rows;
            return Segments{all};
        };
        std::vector<Input> in;
        const RowSegment half = rows_in_runs(width);
        if (m.gated) in.push_back({prefix + "." + m.gate_proj, width, rows_of(width, {half})});
        in.push_back({prefix + "." + m.up_proj, width, rows_of(width, {half})});
        if (!m.gate_up_proj.empty())
            in = {{prefix + "." + m.gate_up_proj, 2 * width, rows_of(2 * width, {half, half})}};
        const Segments down_rows = rows_of(outer, {rows_in_runs(outer)});
        linear(in[0].module, in[0].rows, outer, in[0].segments);
        const bool numbered = m.down_proj == "w2";  // the names are w1, w2, w3
        if (numbered) linear(down, outer, width, down_rows);
        for (size_t i = 1; i < in.size(); ++i) linear(in[i].module, in[i].rows, outer, in[i].segments);
        if (!numbered) linear(down, outer, width, down_rows);
        if (!m.bias) return;
        for (const Input& i : in) bias(i.module, i.rows, i.segments);
        bias(down, outer, down_rows);
    }
    void mixer(const BlockConfig& b, const MlpConfig& m) { mlp(b.prefix, m, hidden_); }
    void mixer(const BlockConfig& b, const MoeConfig& m) {
        add(b.name(m.gate) + ".weight", {m.experts, hidden_}, TensorRole::router);
        if (m.gate_bias) bias(b.name(m.gate), m.experts, {});
        if (!m.router_scale.empty()) norm(b.name(m.router_scale), hidden_);
        if (!m.experts_norm.empty()) norm(b.name(m.experts_norm) + ".weight", hidden_);
        if (!m.expert_scale.empty()) norm(b.name(m.expert_scale), m.experts);
        const std::string experts = b.name(m.experts_name);
        if (m.stacked) {
            const int64_t width = m.expert.intermediate;
            const Segments own{by_experts(m.experts, m.experts)};
            stack(experts + ".gate_up_proj", m.experts, 2 * width, hidden_);
            add(experts + ".gate_up_proj_bias", {m.experts, 2 * width}, TensorRole::bias, own);
            stack(experts + ".down_proj", m.experts, hidden_, width);
            add(experts + ".down_proj_bias", {m.experts, hidden_}, TensorRole::bias, own);
        }
        for (int e = 0; e < (m.stacked ? 0 : m.experts); ++e)
            mlp(fmt::format("{}.{}", experts, e), m.expert, m.latent > 0 ? m.latent : hidden_,
                RowSegment{0, Division::expert, m.experts, "experts", e});
        if (m.latent > 0) {
            linear(b.name("fc1_latent_proj"), m.latent, hidden_, {});
            out_linear(b.name("fc2_latent_proj"), hidden_, m.latent);
        }
        if (!m.hash_table.empty()) add(b.name(m.hash_table), {m.vocab, m.top_k}, TensorRole::table);
        if (m.selection_bias) add(b.name(m.selection_bias_name), {m.experts}, TensorRole::choice);
        if (m.shared.intermediate > 0) mlp(b.name(m.shared_name), m.shared, hidden_);
        if (m.shared_gate) add(b.name(m.shared_gate_name) + ".weight", {1, hidden_}, TensorRole::router);
    }
    void mixer(const BlockConfig& b, const PerLayerInputConfig& m) {
        if (m.index == 0) {
            add(m.table, {m.vocab, int64_t{m.layers} * m.width}, TensorRole::embedding);
            linear(m.projection, int64_t{m.layers} * m.width, hidden_, {});
            norm(m.norm, m.width);
        }
        linear(b.name(m.gate), m.width, hidden_, {});
        out_linear(b.name(m.out), hidden_, m.width);
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
        const RowSegment inner = by_state_heads(m.inner(), m.heads), heads = by_state_heads(m.heads, m.heads),
                         groups = by_groups(int64_t{m.groups} * m.state, m.groups);
        const Segments in{inner, inner, groups, groups, heads}, channels{inner, groups, groups};
        linear(b.name("in_proj"), m.inner() + m.channels() + m.heads, hidden_, in);
        out_linear(b.name("out_proj"), hidden_, m.inner());
        add(b.name("conv1d.weight"), {m.channels(), 1, m.conv}, TensorRole::convolution, channels);
        if (m.conv_bias) bias(b.name("conv1d"), m.channels(), channels);
        for (const char* name : {"A_log", "D", "dt_bias"}) add(b.name(name), {m.heads}, TensorRole::state, {heads});
        if (m.norm != MambaConfig::Norm::none) norm(b.name("norm.weight"), m.inner());
        if (!m.projection_bias) return;
        bias(b.name("in_proj"), m.inner() + m.channels() + m.heads, in);
        bias(b.name("out_proj"), hidden_, {rows_in_runs(hidden_)});
    }
    void mixer(const BlockConfig& b, const ShortConvConfig& s) {
        const RowSegment part = rows_in_runs(hidden_);
        const Segments in{part, part, part};
        linear(b.name("in_proj"), 3 * hidden_, hidden_, in);
        out_linear(b.name("out_proj"), hidden_, hidden_);
        add(b.name("conv.weight"), {hidden_, 1, s.taps}, TensorRole::convolution, {part});
        if (!s.bias) return;
        bias(b.name("in_proj"), 3 * hidden_, in);
        bias(b.name("out_proj"), hidden_, {part});
        bias(b.name("conv"), hidden_, {part});
    }
    void delta_by_channel(const BlockConfig& b, const GatedDeltaConfig& g) {
        const RowSegment keys = by_key_heads(g.keys(), g.key_heads), inner = by_key_heads(g.inner(), g.key_heads),
                         heads = by_key_heads(g.value_heads, g.key_heads);
        const std::array<RowSegment, 3> widths{keys, keys, inner};
        for (size_t i = 0; i < widths.size(); ++i) {
            const char letter = "qkv"[i];
            linear(b.name(fmt::format("{}_proj", letter)), widths[i].rows, hidden_, {widths[i]});
            add(b.name(fmt::format("{}_conv1d.weight", letter)), {widths[i].rows, 1, g.conv}, TensorRole::convolution,
                {widths[i]});
        }
        linear(b.name("f_a_proj"), g.key_dim, hidden_, {});
        linear(b.name("f_b_proj"), g.keys(), g.key_dim, {keys});
        linear(b.name("g_a_proj"), g.value_dim, hidden_, {});
        linear(b.name("g_b_proj"), g.inner(), g.value_dim, {inner});
        linear(b.name("b_proj"), g.value_heads, hidden_, {heads});
        out_linear(b.name("o_proj"), hidden_, g.inner());
        add(b.name("A_log"), {1, 1, g.value_heads, 1}, TensorRole::state, {});
        add(b.name("dt_bias"), {g.keys()}, TensorRole::state, {keys});
        add(b.name("o_norm.weight"), {g.value_dim}, TensorRole::plain_norm);
    }
    void mixer(const BlockConfig& b, const GatedDeltaConfig& g) {
        if (g.by_channel) return delta_by_channel(b, g);
        const RowSegment keys = by_key_heads(g.keys(), g.key_heads), inner = by_key_heads(g.inner(), g.key_heads),
                         heads = by_key_heads(g.value_heads, g.key_heads);
        if (g.by_key_head) {
            linear(b.name("in_proj_qkvz"), g.channels() + g.inner(), hidden_,
                   {by_key_heads(g.channels() + g.inner(), g.key_heads)});
            add(b.name("in_proj_ba.weight"), {2 * g.value_heads, hidden_}, TensorRole::router,
                {by_key_heads(2 * g.value_heads, g.key_heads)});
        } else {
            linear(b.name("in_proj_qkv"), g.channels(), hidden_, {keys, keys, inner});
            linear(b.name("in_proj_z"), g.inner(), hidden_, {inner});
            for (const char* name : {"in_proj_b.weight", "in_proj_a.weight"})
                add(b.name(name), {g.value_heads, hidden_}, TensorRole::router, {heads});
        }
        out_linear(b.name("out_proj"), hidden_, g.inner());
        add(b.name("conv1d.weight"), {g.channels(), 1, g.conv}, TensorRole::convolution, {keys, keys, inner});
        for (const char* name : {"A_log", "dt_bias"}) add(b.name(name), {g.value_heads}, TensorRole::state, {heads});
        add(b.name("norm.weight"), {g.value_dim}, TensorRole::plain_norm);
    }

    const ModelConfig& model_;
    int64_t hidden_;
};

// A tied head has no module of its own in the file.
std::string head_bias_name(const ModelConfig& model) {
    constexpr std::string_view weight = "weight";
    if (model.head == model.embedding || !model.head.ends_with(weight)) return "lm_head.bias";
    return model.head.substr(0, model.head.size() - weight.size()) + "bias";
}

}  // namespace

std::vector<TensorEntry> tensor_list(const ModelConfig& model) {
    TensorLister lister(model);
    lister.add(model.embedding, {model.vocab, model.hidden}, TensorRole::embedding);
    for (const BlockConfig& block : model.blocks) lister.block(block);
    if (model.hyper) lister.hyper(model.hyper->head, model.hyper->streams, 1);
    lister.stream_norm(model.norm);
    if (model.head_bias)
        lister.add(head_bias_name(model), {model.vocab}, TensorRole::bias, {rows_in_runs(model.vocab)});
    if (model.head != model.embedding)
        lister.add(model.head, {model.vocab, model.hidden}, TensorRole::head, {rows_in_runs(model.vocab)});
    return std::move(lister.list);
}

std::vector<TensorEntry> prediction_tensor_list(const ModelConfig& model) {
    TensorLister lister(model);
    if (!model.prediction) return {};
    const PredictionConfig& p = *model.prediction;
    lister.add(p.projection + ".weight", {model.hidden, 2 * model.hidden}, TensorRole::linear,
               {rows_in_runs(model.hidden)});
    for (const std::string& norm : {p.embedding_norm, p.hidden_norm, p.norm}) lister.norm(norm, model.hidden);
    for (const BlockConfig& block : p.blocks) lister.block(block);
    return std::move(lister.list);
}

}  // namespace nibble
