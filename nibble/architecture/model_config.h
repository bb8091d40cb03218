// The description of a model as values: an embedding, a list of residual blocks x = x + residual_scale *
// post_norm(mixer(norm(x))) and a head. Llama's layer is two blocks (attention, MLP); Nemotron-H's is one of four
// kinds. All numbers of config.json and all tensor names are resolved here, so that the engines, calibration, exports,
// the GGUF writer and training do not depend on families. Only the table of a family (architecture/families/) does.
#pragma once

#include "base/activation.h"
#include "base/error.h"
#include "base/json.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble {

struct Rope {
    enum class Scaling : uint8_t { none, linear, llama3, yarn, proportional, longrope } scaling = Scaling::none;
    int dims = 0;              // rotated dimensions, the first ones of a head; 0: no rotary embedding
    bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + dims/2)
    double theta = 10000.0;
    double factor = 1.0;                                   // for linear, llama3, yarn, proportional
    double low_freq_factor = 1.0, high_freq_factor = 4.0;  // for llama3
    int64_t original_context = 0;                          // for llama3, yarn, longrope
    double beta_fast = 32.0, beta_slow = 1.0;              // for yarn
    bool truncate = true;                                  // for yarn: round correction dims to integers
    double attention_factor = 1.0;                         // for yarn, longrope: factor of cos and sin
    int pairs = 0;  // for proportional: number of rotated pairs, with frequency theta^(-2i / dims); the others are 0
    // For longrope: the frequency of pair i is divided by factors[i]. The short lists hold for up to original_context
    // tokens, the long ones for more; choose_rope_factors() chooses between them.
    std::vector<double> factors, short_factors, long_factors;
    double short_attention = 1.0, long_attention = 1.0;
    bool operator==(const Rope&) const = default;
};

// RMSNorm of queries and keys.
enum class QkNorm : uint8_t {
    none,
    head,        // per head, one weight for all heads; before the rotary embedding
    joined,      // over all heads together, before the rotary embedding
    late,        // per head, after the rotary embedding
    late_plain,  // per head without weights, after the rotary embedding (llama4)
};

// Sparse attention: a query attends to the keys that an indexer chooses (kernels/indexer.h). Two kinds:
//   weighted (deepseek_v32, with latent attention): indexer.wq_b of the query's latent, indexer.wk and indexer.k_norm
//   (a
//     LayerNorm) of x for the keys, indexer.weights_proj of x / sqrt(heads) for the weights
//   by block (minimax_m3): index_q_proj and index_k_proj of x with an RMSNorm per head, index_q_norm and index_k_norm
struct IndexerConfig {
    int heads = 0, dim = 0;
    int64_t top = 0;       // chosen keys, or runs of `block` keys
    bool weighted = true;  // otherwise by block
    int64_t block = 1;     // keys of a run
    int64_t local = 0;     // newest runs that are always chosen
    Rope rope;             // rotates the first rope.dims dimensions
    int owner = -1;        // the block whose choice this one uses; -1: its own. Then the indexer has no tensors.
    bool shared = false;   // later blocks use this choice

    // Returns the number of tokens up to which every key is chosen.
    int64_t dense_tokens() const { return top * block; }
};

// Names of modules are relative to the block's prefix: "q_proj" stands for PREFIX.q_proj.weight and PREFIX.q_proj.bias.
struct AttentionConfig {
    int heads = 0, kv_heads = 0, head_dim = 0;
    int v_dim = 0;       // width of the values of a head; 0: head_dim
    float scale = 1.0f;  // factor of q . k
    float soft_cap = 0;  // c: a score s becomes c tanh(s / c); 0: it does not
    bool qkv_bias = false, out_bias = false;
    QkNorm qk_norm = QkNorm::none;
    int64_t window = 0;  // number of keys that a query sees, including its own; 0: all
    int64_t chunk = 0;   // a query sees the keys of its own run of `chunk` positions only; 0: of all
    Rope rope;
    // After the rotary embedding, the query at position p is multiplied by 1 + query_beta * ln(1 + floor((p +
    // query_offset) / query_period)). query_period 0: no factor.
    float query_beta = 0.0f;
    int64_t query_period = 0, query_offset = 0;
    float key_scale = 1.0f;    // multiplies the outputs of k_proj
    float value_scale = 1.0f;  // multiplies the values
    bool value_norm = false;   // RMSNorm without weights of every head of the values, before value_scale
    // A tensor [heads]: a score per head that takes part in the softmax and has no value. Empty: none.
    std::string sinks;
    // The block whose keys and values this one attends to, and the prefix of its tensors; -1: its own. Then there are
    // no k_proj, v_proj and k_norm.
    int kv_block = -1;
    std::string kv_prefix;
    bool kv_shared = false;  // later blocks attend to the keys and values of this one
    // A linear [heads, hidden]: the output of head h is multiplied by sigmoid(row h * x). Empty: none.
    std::string head_gate;
    // The rows of q_proj are, head after head, those of the query and those of a gate. The output of a head is
    // multiplied by the logistic sigmoid of its gate.
    bool output_gate = false;
    std::string qkv_proj;  // one matrix with the rows of q, k and v; empty: three matrices
    // v_proj empty: the values are the output of k_proj before its norm.
    std::string q_proj = "q_proj", k_proj = "k_proj", v_proj = "v_proj", o_proj = "o_proj";
    std::string q_norm = "q_norm", k_norm = "k_norm";
    std::optional<IndexerConfig> indexer;  // by block

    int value_dim() const { return v_dim > 0 ? v_dim : head_dim; }
    int64_t q_cols() const { return int64_t{heads} * head_dim; }
    int64_t q_rows() const { return output_gate ? 2 * q_cols() : q_cols(); }  // rows of q_proj
    int64_t kv_cols() const { return int64_t{kv_heads} * head_dim; }
    int64_t v_cols() const { return int64_t{kv_heads} * value_dim(); }
    int64_t out_cols() const { return int64_t{heads} * value_dim(); }  // inputs of o_proj
};

// Multi-head latent attention (deepseek_v3). Queries and keys have nope_dim + rope.dims dimensions, values v_dim.
struct LatentAttentionConfig {
    int heads = 0;
    int q_rank = 0;  // 0: q_proj replaces q_a_proj, q_a_layernorm and q_b_proj
    int kv_rank = 0, nope_dim = 0, v_dim = 0;
    float scale = 1.0f;  // includes yarn's mscale_all_dim
    bool bias = false;   // biases of q_a_proj, kv_a_proj_with_mqa and o_proj
    Rope rope;
    bool rotates = true;      // false: the rope.dims dimensions are not rotated (kimi_linear)
    float query_beta = 0.0f;  // as in AttentionConfig, of the whole query
    int64_t query_period = 0;
    std::optional<IndexerConfig> indexer;  // weighted; requires q_rank
};

// Attention over a window and over pooled keys (deepseek_v4; model/cpu/compressed_attention.h). One head of keys, which
// are the values too.
struct CompressedAttentionConfig {
    int heads = 0, dim = 0, q_rank = 0;
    int groups = 0, out_rank = 0;  // heads are divided into groups, each with its own rows of wo_a
    float scale = 1.0f;
    int64_t window = 0;
    Rope rope;                             // rotates the last rope.dims dimensions of a head
    int64_t rate = 0;                      // tokens per pooled key; 0: none
    bool overlaps = false;                 // a pooled key reads the run before too
    std::optional<IndexerConfig> indexer;  // weighted, over pooled keys; its rope is that of the block
    std::string kv_norm = "kv_norm";
};

struct MlpConfig {
    int intermediate = 0;
    Activation activation = Activation::silu;
    bool gated = true;        // down(act(gate(x)) * up(x)); false: down(act(up(x)))
    float gate_scale = 1.0f;  // multiplies gate(x)
    bool bias = false;
    std::optional<ClampedGlu> clamp;  // in place of act(gate(x)) * up(x); gated
    std::string gate_up_proj;         // one matrix with the rows of gate, then of up; empty: two matrices
    std::string gate_proj = "gate_proj", up_proj = "up_proj", down_proj = "down_proj";
};

struct MoeConfig {
    int experts = 0, top_k = 0;
    MlpConfig expert;
    MlpConfig shared;  // intermediate 0: no shared expert
    // sparse_mixer (phimoe, top_k 2): the best expert, then the best of the others; each weight is its share of a
    // softmax over the logits l_i near the best one m: (m - l_i) / max(|l_i|, m) <= 2 jitter.
    // sqrt_softplus (deepseek_v4): sqrt(ln(1 + e^l)) in place of a sigmoid.
    enum class Router : uint8_t { softmax, sigmoid, sparse_mixer, sqrt_softplus } router = Router::softmax;
    float jitter = 0.0f;
    bool gate_bias = false;     // true if the router's logits have a bias
    bool weigh_inputs = false;  // an expert's input is multiplied by its weight, not its output (llama4)
    // A tensor of integers [vocab, top_k]: the experts of a token, by its id. Empty: the best by score.
    std::string hash_table;
    int64_t vocab = 0;            // rows of hash_table
    bool normalize = true;        // the weights of the chosen experts sum to one
    float smallest_sum = 1e-20f;  // added to the sum by which `normalize` divides
    bool selection_bias = false;  // a tensor is added to the scores for the choice, but not for the weights
    int groups = 1, kept_groups = 1;
    float routed_scaling = 1.0f;
    int latent = 0;            // width of fc1_latent_proj; 0: experts use the full width
    bool shared_gate = false;  // a linear of one row, whose logistic sigmoid multiplies the shared expert's output
    // Gemma 4: the router reads RMSNorm(x) / sqrt(hidden) times the tensor `router_scale` [hidden], the experts
    // RMSNorm(x) with the weight `experts_norm`; weights are multiplied by the tensor `expert_scale` [experts]. Empty:
    // both read x, and nothing is multiplied.
    std::string router_scale, experts_norm, expert_scale;
    // The experts lie in stacks, as in files of GPT-OSS: PREFIX.EXPERTS.gate_up_proj [experts * 2 * intermediate, in]
    // with alternating gate and up outputs, down_proj [experts * out, intermediate], and biases NAME_bias [experts,
    // outputs]. Without it, stacks whose gate outputs come first are read too.
    bool stacked = false;
    // Expert e is PREFIX.EXPERTS.e. `selection_bias_name` is a tensor, not a module.
    std::string gate = "gate", selection_bias_name = "gate.e_score_correction_bias";
    std::string experts_name = "experts", shared_name = "shared_experts", shared_gate_name = "shared_expert_gate";
};

struct MambaConfig {
    int heads = 0, head_dim = 0, groups = 0, state = 0, conv = 0;
    bool conv_bias = true, projection_bias = false;
    float dt_min = 0.0f;  // lower bound of dt
    // The order of the RMS norm and the gate silu(z): RMS(y * silu(z)), RMS(y) * silu(z), or y * silu(z).
    enum class Norm : uint8_t { after_gate, before_gate, none } norm = Norm::after_gate;
    std::array<float, 5> scales{1, 1, 1, 1, 1};  // multiply the outputs z, x, B, C and dt of in_proj

    int64_t inner() const { return int64_t{heads} * head_dim; }
    int64_t channels() const { return inner() + 2LL * groups * state; }  // channels of the convolution
};

// Short convolution (lfm2): b | g | v = in_proj(x);  y = out_proj(g * conv(b * v)).
struct ShortConvConfig {
    int taps = 0;
    bool bias = false;  // true if the convolution and both linears have a bias
};

// Gated delta net (Yang et al. 2024, arXiv 2412.06464; Qwen3-Next): kernels/delta_rule.h has the recurrence. Value
// heads h * values_per_key() ... read key head h.
struct GatedDeltaConfig {
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv = 0;
    // in_proj_qkvz and in_proj_ba, whose rows are, key head after key head, those of q, k, v, z and of b, a. Otherwise
    // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, with all heads of q, then of k, then of v.
    bool by_key_head = false;
    // Kimi delta attention (arXiv 2510.26692): a decay per channel of the keys, from f_b_proj(f_a_proj(x)), and a gate
    // sigmoid(g_b_proj(g_a_proj(x))). q_proj, k_proj and v_proj have a convolution each. As many key as value heads.
    bool by_channel = false;

    int values_per_key() const { return value_heads / key_heads; }
    int64_t keys() const { return int64_t{key_heads} * key_dim; }  // columns of q, and of k
    int64_t inner() const { return int64_t{value_heads} * value_dim; }
    int64_t channels() const { return 2 * keys() + inner(); }             // channels of the convolution
    int64_t decays() const { return by_channel ? keys() : value_heads; }  // number of decays of a token
};

// Per-layer embeddings (gemma4): with P, a vector of `width` numbers that follows from the token alone,
//   y = per_layer_projection(gelu_tanh(per_layer_input_gate(x)) * P)
//   P = (RMSNorm(projection(e) / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2)
// e the model's scaled embedding of the token; of `projection` and `table` the rows and columns [index * width,
// (index + 1) * width).
struct PerLayerInputConfig {
    int width = 0, index = 0, layers = 0;
    int64_t vocab = 0;              // rows of `table`
    std::string table, projection;  // a tensor [vocab, layers * width], a linear [layers * width, hidden]
    std::string norm;               // a tensor [width]
    std::string gate = "per_layer_input_gate", out = "per_layer_projection";
};

// Several mixers on the same x, whose outputs are added up in their order:
//   y = sum of out_scale * post_norm(mixer(in_scale * norm(x)))
struct Branch;
struct ParallelConfig {
    std::vector<Branch> branches;
};

using MixerConfig =
    std::variant<AttentionConfig, LatentAttentionConfig, MlpConfig, MoeConfig, MambaConfig, GatedDeltaConfig,
                 ShortConvConfig, PerLayerInputConfig, ParallelConfig, CompressedAttentionConfig>;

struct Branch {
    std::string prefix;           // name prefix of the mixer's tensors
    std::string norm, post_norm;  // empty: none
    MixerConfig mixer;            // at most one of a block's keeps keys and values, at most one a recurrent state
    float in_scale = 1.0f, out_scale = 1.0f;
};

struct BlockConfig {
    int index = 0;          // index in ModelConfig::blocks
    int layer = 0;          // number in the checkpoint's names
    std::string prefix;     // prefix of the mixer's tensors: "model.layers.3.self_attn"
    std::string norm;       // "model.layers.3.input_layernorm.weight"; empty: none
    std::string post_norm;  // empty: none
    MixerConfig mixer;
    float residual_scale = 1.0f;
    std::string output_scale;  // a tensor of one number that multiplies x after the block; empty: none
    std::string hyper;  // name prefix of the tensors HYPER_fn, _base and _scale (ModelConfig::hyper); empty: a sum

    // Returns the full name of a module or tensor of the mixer.
    std::string name(std::string_view relative) const { return prefix + "." + std::string(relative); }
};

// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, 2.2): drafts the token after next from the hidden state h[i]
// after the model's last norm and the next token t[i + 1],
//   x = projection(concat(embedding_norm(embedding(t[i + 1])), hidden_norm(h[i])))
//   logits of t[i + 2] = head(norm(blocks(x)))
// with the model's own embedding and head. Applied to its own output, it drafts the token after that.
struct PredictionConfig {
    std::string projection;  // a linear, [hidden, 2 * hidden]
    std::string embedding_norm, hidden_norm, norm;
    bool hands_on_normed = false;  // when applied again, its input is the output of `norm` (nemotron_h) instead of the
                                   // input of `norm`
    std::vector<BlockConfig>
        blocks;  // attention has its own KV cache; BlockConfig::index continues after the model's blocks
};

// Hyper-connections (model/cpu/hyper.h): the residual stream is several copies of the hidden state.
struct HyperConfig {
    int streams = 0, iterations = 0;
    float eps = 0;
    std::string
        head;  // name prefix of the tensors HEAD_fn, _base and _scale, which join the streams before the last norm
};

struct ModelConfig {
    std::string architecture;  // model_type
    int64_t vocab = 0, hidden = 0, context = 0;
    float norm_eps = 1e-5f;
    bool norm_plus_one = false;    // every RMSNorm multiplies by 1 + w (gemma3)
    bool layer_norm = false;       // norms around mixers and before the head are LayerNorm, not RMSNorm
    bool norm_bias = false;        // true if the norm has a bias, NAME.bias for NAME.weight
    float embedding_scale = 1.0f;  // gemma3: sqrt(hidden), rounded to BF16
    float logit_scale = 1.0f;      // granite: 1 / logits_scaling
    float logit_cap = 0.0f;        // c: a logit l becomes c tanh(l / c); 0: it does not
    bool head_bias = false;
    std::string embedding, norm, head;  // tensor names; head equals embedding if they are tied
    std::vector<BlockConfig> blocks;
    // The first of the modules that num_nextn_predict_layers announces. Longer drafts apply it repeatedly.
    std::optional<PredictionConfig> prediction;
    std::optional<HyperConfig> hyper;  // then every block has BlockConfig::hyper
    std::vector<int32_t> eos;          // may be empty
    int32_t bos = -1;

    int64_t width() const { return hidden * (hyper ? hyper->streams : 1); }  // width of the residual stream
};

// Builds the description from config.json (Checkpoint::config()). Errors name the cause: an unknown architecture, or a
// field that changes the computation and is not supported. Fields known to have no effect (dropout, dtype, training
// settings) are listed in the source. `root`: prefix of "layers.N" in the checkpoint's names ("language_model.model.");
// empty: the architecture's own ("model.", "backbone.").
Result<ModelConfig> model_config(const Json& config, std::string_view root = {});

// Chooses the factors of longrope for an engine whose sequences have at most `length` tokens. Called once, where a
// model is loaded: factors that changed with the length of a pass would give cached keys another rotation than new
// ones.
void choose_rope_factors(ModelConfig& model, int64_t length);

}  // namespace nibble
