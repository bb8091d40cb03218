// The names of one model in two worlds: GGUF (llama.cpp) and Hugging Face, one table per architecture, with what has to
// be done to the numbers on the way. Source: llama.cpp's converters (conversion/*.py) and gguf-py tensor_mapping.
//
// Patterns: "{}" is the layer, "{e}" the expert, a final "*" is "weight" or "bias".
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

enum class GgufTransform : uint8_t {
    none,
    rope_q,      // rows of each head interleaved in GGUF (see gguf_row_of_hf_row); heads = attention heads
    rope_k,      // the same with key/value heads
    experts,     // one GGUF tensor {experts, out, in}, one HF tensor per expert
    norm_shift,  // GGUF stores w + 1
    a_log,       // GGUF stores -exp(w) as {heads, 1}
    column,      // GGUF {n, 1}, HF {n}
    conv1d,      // GGUF {channels, kernel}, HF {channels, 1, kernel}
    flatten,     // GGUF {groups, n / groups}, HF {n}
};

struct GgufNameRow {
    std::string_view gguf, hf;
    GgufTransform transform = GgufTransform::none;
    bool keep_f32 = false;  // stays FP32 in a Hugging Face folder
};

struct GgufArchitecture {
    std::string_view name;  // general.architecture
    std::span<const GgufNameRow> rows;
    // Kinds of tensors ("ffn_up") whose `.scale` llama.cpp loads and then does not multiply with.
    std::span<const std::string_view> unscaled = {};
};

// Errors: an architecture without a table, with the list of those that have one.
Result<GgufArchitecture> find_gguf_architecture(std::string_view name);

// A concrete name, taken apart. The row lives as long as the program.
struct GgufNameMatch {
    const GgufNameRow* row = nullptr;
    int64_t layer = -1, expert = -1;
    std::string_view suffix;  // "weight" or "bias" where the pattern ends in "*"
};

std::optional<GgufNameMatch> match_gguf_name(const GgufArchitecture& architecture, std::string_view gguf_name);
std::optional<GgufNameMatch> match_hf_name(const GgufArchitecture& architecture, std::string_view hf_name);

std::string gguf_name_of(const GgufNameMatch& match);
std::string hf_name_of(const GgufNameMatch& match);  // match.expert must be set where the row has experts

// llama pairs rotary dimensions as neighbours, Hugging Face as halves. Rows (or entries of a bias) move as a unit:
// GGUF row h*d + 2i + p is HF row h*d + p*(d/2) + i, for head h, 0 <= i < d/2, p in {0, 1}; d is even.
constexpr int64_t gguf_row_of_hf_row(int64_t row, int64_t head_dim) {
    const int64_t r = row % head_dim, half = head_dim / 2;
    return row - r + r % half * 2 + r / half;
}

}  // namespace nibble
