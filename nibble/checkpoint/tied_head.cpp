#include "checkpoint/tied_head.h"

#include "architecture/canonical_config.h"
#include "checkpoint/decode.h"
#include "checkpoint/text_config.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t compared_bytes = int64_t{4} << 20;  // bytes that are compared at a time

// Returns the value in config.json, or the default of the family's class; false for other families without the key.
Result<bool> says_tied(const Json& config) {
    NIBBLE_TRY(const Json canonical, canonical_config(config));
    const Json* tied = text_value(canonical, "tie_word_embeddings");
    return tied && *tied == true;
}

std::string_view module_word(std::string_view name) {  // returns "lm_head" for "language_model.lm_head.weight"
    if (!name.ends_with(".weight")) return {};
    name.remove_suffix(7);
    return name.substr(name.rfind('.') + 1);
}

bool is_text_embedding(const CheckpointTensor& t) {
    constexpr std::array<std::string_view, 6> words{"embed_tokens",   "embeddings", "word_embeddings",
                                                    "tok_embeddings", "wte",        "embed_in"};
    constexpr std::array<std::string_view, 3> towers{"vision", "visual", "audio"};
    return t.shape.size() == 2 && std::ranges::count(words, module_word(t.name)) > 0 &&
           std::ranges::none_of(towers, [&](std::string_view w) { return t.name.find(w) != t.name.npos; });
}

// Compares values, so that a copy in a wider type counts as a copy.
Result<bool> equal_matrices(const Checkpoint& checkpoint, size_t a, size_t b) {
    const CheckpointTensor& x = checkpoint.tensors()[a];
    const CheckpointTensor& y = checkpoint.tensors()[b];
    if (x.quantized() || y.quantized() || x.shape != y.shape) return false;
    const int64_t step = std::max<int64_t>(1, compared_bytes / (4 * std::max<int64_t>(1, x.cols())));
    for (int64_t row = 0; row < x.rows(); row += step) {
        const int64_t count = std::min(step, x.rows() - row);
        Matrix first, second, wide_first, wide_second;
        NIBBLE_TRY(MatrixView left, checkpoint.read_plain(a, row, count, first));
        NIBBLE_TRY(MatrixView right, checkpoint.read_plain(b, row, count, second));
        if (left.dtype != right.dtype) {
            left = plain_as(left, DType::f32, wide_first);
            right = plain_as(right, DType::f32, wide_second);
        }
        const bool same = std::memcmp(left.data, right.data, static_cast<size_t>(left.bytes())) == 0;
        checkpoint.done_with(a, row, count);
        checkpoint.done_with(b, row, count);
        if (!same) return false;
    }
    return true;
}

}  // namespace

Result<StoredHead> find_stored_head(const Checkpoint& checkpoint) {
    const auto tensors = checkpoint.tensors();
    const auto head =
        std::ranges::find_if(tensors, [](const CheckpointTensor& t) { return module_word(t.name) == "lm_head"; });
    const auto embedding = std::ranges::find_if(tensors, is_text_embedding);
    if (head == tensors.end() || embedding == tensors.end()) return StoredHead{};
    NIBBLE_TRY(const bool tied, says_tied(checkpoint.config()));
    if (!tied) return StoredHead{};
    StoredHead found{.index = static_cast<size_t>(head - tensors.begin())};
    NIBBLE_TRY(const bool same,
               equal_matrices(checkpoint, found.index, static_cast<size_t>(embedding - tensors.begin())));
    found.kind = same ? StoredHead::Kind::copy : StoredHead::Kind::different;
    found.note =
        same ? fmt::format("{} is a copy of {}, and config.json ties the two: it is loaded once and written once",
                           show_name(head->name), show_name(embedding->name))
             : fmt::format(
                   "{} differs from {}, though config.json ties them (tie_word_embeddings): the file's head is "
                   "used, and a written config.json says tie_word_embeddings: false",
                   show_name(head->name), show_name(embedding->name));
    return found;
}

void untie_head(Json& config) {
    constexpr const char* key = "tie_word_embeddings";
    config[key] = false;
    for (auto& [name, part] : config.items())
        if (part.is_object() && part.contains(key)) part[key] = false;
}

}  // namespace nibble
