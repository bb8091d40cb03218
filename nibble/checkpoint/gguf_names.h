// The names of one model in two worlds: GGUF (llama.cpp) and Hugging Face, with what has to be done to the numbers on
// the way. They follow from the description of the model; a row per architecture says where llama.cpp differs. Source:
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
    rope,        // rows of each head interleaved in GGUF (see gguf_row_of_hf_row)
    experts,     // one GGUF tensor {experts, out, in}, one HF tensor per expert
    norm_shift,  // GGUF stores w + 1
    a_log,       // GGUF stores -exp(w) as {heads, 1}
    column,      // GGUF {n, 1}, HF {n}
    conv1d,      // GGUF {channels, kernel}, HF {channels, 1, kernel}
    flatten,     // GGUF {groups, n / groups}, HF {n}
};

struct GgufArchitecture {
    std::string_view name;  // general.architecture
    // Kinds of tensors ("ffn_up") whose `.scale` llama.cpp loads and then does not multiply with.
    std::span<const std::string_view> unscaled = {};
    bool neighbours = false;                 // llama.cpp rotates pairs (2i, 2i+1): rows of q and k move
    std::string_view ffn_norm = "ffn_norm";  // the norm before a feed-forward network
    bool stray_biases = false;  // files have biases of single linears, whatever config.json says about all of them
};

// Errors: an architecture that is not in the list, with those that are.
Result<GgufArchitecture> find_gguf_architecture(std::string_view name);
struct Family;
// The family of a canonical config.json. Error: it has no GGUF writer; lists those that have one.
Result<const Family*> gguf_family_of(const Json& config);
// The architecture that llama.cpp has for the model.
Result<GgufArchitecture> gguf_architecture_of(const Family& family, const ModelConfig& model);

// A tensor of the Hugging Face checkpoint and its place in a GGUF file.
struct GgufPart {
    std::string hf, gguf;
    GgufTransform transform = GgufTransform::none;
    int64_t expert = -1;    // experts: which one
    int64_t count = 0;      // experts: of the stack; rope: heads; flatten: groups
    int64_t head_dim = 0;   // rope
    bool keep_f32 = false;  // stays FP32 in a Hugging Face folder
};

// Every tensor of the model, without layers for multi-token prediction. A tied head has no part.
std::vector<GgufPart> gguf_parts(const ModelConfig& model, const GgufArchitecture& architecture);

// llama pairs rotary dimensions as neighbours, Hugging Face as halves. Rows (or entries of a bias) move as a unit:
// GGUF row h*d + 2i + p is HF row h*d + p*(d/2) + i, for head h, 0 <= i < d/2, p in {0, 1}; d is even.
constexpr int64_t gguf_row_of_hf_row(int64_t row, int64_t head_dim) {
    const int64_t r = row % head_dim, half = head_dim / 2;
    return row - r + r % half * 2 + r / half;
}

}  // namespace nibble
