// Maps the tensor names of a model between GGUF (llama.cpp) and Hugging Face, with the transformation of the numbers.
// The names follow from the description of the model; a row per architecture lists where llama.cpp differs. Source:
// llama.cpp's converters (conversion/*.py), gguf-py's tensor_mapping, src/models/*.cpp.
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

enum class GgufTransform : uint8_t {
    none,
    rope,        // GGUF interleaves the rows of each head (see gguf_row_of_hf_row)
    experts,     // one GGUF tensor {experts, out, in}, one HF tensor per expert
    norm_shift,  // GGUF stores w + 1
    a_log,       // GGUF stores -exp(w) as {heads, 1}
    a_log_flat,  // GGUF stores -exp(w) as {heads}
    column,      // GGUF {n, 1}, HF {n}
    conv1d,      // GGUF {channels, kernel}, HF {channels, 1, kernel}
    flatten,     // GGUF {groups, n / groups}, HF {n}
};

// A key below "<architecture>." and the field of config.json that has its value.
struct GgufField {
    enum class Kind : uint8_t { integer, number, boolean };
    const char* key;
    const char* field;
    Kind kind = Kind::integer;
};

// A field of config.json that a GGUF file shows by its tensors: `tensor` is the name in a layer.
struct GgufBias {
    const char* field;
    const char* tensor;
};

// A row of the table of llama.cpp's architectures (gguf_architectures.cpp).
struct GgufArchitecture {
    std::string_view name;  // general.architecture
    // Kinds of tensors ("ffn_up") whose `.scale` llama.cpp loads but never applies.
    std::span<const std::string_view> unscaled = {};
    bool neighbours = false;                 // llama.cpp rotates pairs (2i, 2i+1), so rows of q and k are permuted
    std::string_view ffn_norm = "ffn_norm";  // name of the norm before a feed-forward network
    bool stray_biases = false;  // files may have biases of single linears, whatever config.json states about biases

    // From here on: for architectures whose keys follow from this row. model_type empty: their keys have code of their
    // own (gguf_hyper_parameters.cpp, gguf_config.cpp).
    std::string_view model_type = {}, hf_class = {};
    // The model_type of files with a sliding window, if it differs.
    std::string_view sliding_type = {}, sliding_class = {};
    const char* activation_field = "hidden_act";
    std::string_view activation = "silu";
    const char* epsilon = "rms_norm_eps";
    bool layer_norm = false;  // the epsilon is that of LayerNorm
    std::span<const GgufField> fields = {};
    std::span<const GgufBias> biases = {};  // biases that the graph adds; others are refused
    enum class Head : uint8_t { any, own, tied } head = Head::any;
    bool square = false;            // heads * head_dim must be hidden_size
    bool llama3_rope = false;       // the graph reads rope_freqs
    bool yarn_mscale = false;       // it reads rope.scaling.yarn_log_multiplier, mscale_all_dim (with mscale 1)
    const char* partial = nullptr;  // field of a partial rotation; nullptr: heads rotate as a whole
    // A layer slides if (layer + 1) % period != 0. 0: no windows.
    uint32_t window_period = 0;
    uint32_t unrotated_period = 0;  // a layer has no rotary embedding if (layer + 1) % unrotated_period == 0
    uint32_t gating = 0;            // expert_gating_func; 0: not written
    uint32_t query_scale_layers =
        0;  // gemma2, gemma3: the model with this number of layers scales queries by hidden / heads
    std::string_view fixed = "{}";  // fields that the architecture implies
};

std::span<const GgufArchitecture> gguf_architectures();

// Returns the architecture of this name. Error: it is unknown; the message lists the known ones.
Result<GgufArchitecture> find_gguf_architecture(std::string_view name);
struct Family;
// Returns the family of a canonical config.json. Error: it has no GGUF writer; the message lists those that have one.
Result<const Family*> gguf_family_of(const Json& config);
// Returns the architecture that llama.cpp uses for the model.
Result<GgufArchitecture> gguf_architecture_of(const Family& family, const ModelConfig& model);

// Rows or columns of the value heads of a gated delta net. Hugging Face has the heads of one key head next to each
// other; llama.cpp has the first head of every key head, then the second ones, and so on.
struct GgufValueHeads {
    int64_t first = 0;  // rows or columns before the heads, which stay
    int64_t groups = 0, per_group = 0;
    int64_t size = 0;  // rows or columns of a head; 0: nothing moves

    int64_t heads() const { return groups * per_group; }
    // The place in GGUF of row or column `i`.
    int64_t place(int64_t i) const {
        if (size == 0 || i < first) return i;
        const int64_t head = (i - first) / size, inside = (i - first) % size;
        return first + (head % per_group * groups + head / per_group) * size + inside;
    }
};

// A tensor of the Hugging Face checkpoint and its place in a GGUF file.
struct GgufPart {
    std::string hf, gguf;
    GgufTransform transform = GgufTransform::none;
    int64_t expert = -1;    // for `experts`: the expert's index
    int64_t count = 0;      // for `experts`: experts in the stack; `rope`: heads; `flatten`: groups
    int64_t head_dim = 0;   // for `rope`
    bool keep_f32 = false;  // stays FP32 in a Hugging Face folder
    GgufValueHeads value_rows{}, value_columns{};
};

// Returns the parts of all tensors of the model, without layers for multi-token prediction. A tied head has no part.
std::vector<GgufPart> gguf_parts(const ModelConfig& model, const GgufArchitecture& architecture);

// llama.cpp stores the two rotary dimensions of a pair as neighbors, Hugging Face in two halves. Rows (or entries of a
// bias) move as a whole: GGUF row h*d + 2i + p is HF row h*d + p*(d/2) + i, for head h, 0 <= i < d/2, p in {0, 1}; d is
// even.
constexpr int64_t gguf_row_of_hf_row(int64_t row, int64_t head_dim) {
    const int64_t r = row % head_dim, half = head_dim / 2;
    return row - r + r % half * 2 + r / half;
}

}  // namespace nibble
