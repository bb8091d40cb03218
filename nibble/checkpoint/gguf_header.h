// The metadata of a GGUF file that is to be written: hyper-parameters from config.json, the tokenizer from the side
// files.
#pragma once

#include "checkpoint/gguf_layout.h"
#include "io/gguf_value.h"

#include <memory>

namespace nibble {

// Metadata together with the arrays it views.
struct GgufHeader {
    GgufMetadata metadata;
    std::vector<std::shared_ptr<const void>> kept{};

    template <class T>
    void add_array(std::string key, std::vector<T> values) {
        auto owned = std::make_shared<const std::vector<T>>(std::move(values));
        metadata.add(std::move(key), GgufArray::of(std::span<const T>(*owned)));
        kept.push_back(std::move(owned));
    }
    void add_strings(std::string key, std::vector<std::string> values) {
        auto owned = std::make_shared<const std::vector<std::string>>(std::move(values));
        metadata.add(std::move(key), GgufArray::of(std::vector<std::string_view>(owned->begin(), owned->end())));
        kept.push_back(std::move(owned));
    }
};

// general.* and the keys of the architecture, in the types llama.cpp's loader insists on. Errors: a field that is
// missing, of another type or out of range; a value that llama.cpp's model of this architecture does not compute with.
Status add_gguf_hyper_parameters(const ExportSpec& spec, const ModelConfig& model, std::string_view architecture,
                                 const GgufExportLayout& layout, GgufHeader& out);

// rope_freqs.weight, when config.json scales frequencies as Llama 3 does; empty otherwise.
Result<std::vector<float>> gguf_rope_divisors(const ExportSpec& spec);

// tokenizer.*, padded to `vocabulary` tokens, the rows of the embedding. Takes tokenizer.json (byte-level BPE with a
// known pre-tokenizer, or SentencePiece's BPE with byte fallback), else tokenizer.model (that BPE);
// tokenizer_config.json and chat_template.jinja. Without any tokenizer file the model is "no_vocab": llama.cpp loads it
// and works on token ids. Errors: any other tokenizer, more tokens than `vocabulary`.
Status add_gguf_tokenizer(const ExportSpec& spec, int64_t vocabulary, GgufHeader& out);

}  // namespace nibble
