// The metadata of a GGUF file to be written: hyper-parameters from config.json, the tokenizer from the side files.
#pragma once

#include "checkpoint/gguf_layout.h"
#include "io/gguf_value.h"

#include <memory>

namespace nibble {

// Metadata with the arrays that it refers to.
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

// Adds general.* and the keys of the architecture, in the types that llama.cpp's loader requires. Errors: a field that
// is missing, has another type or is out of range; a value that llama.cpp's model of this architecture ignores.
Status add_gguf_hyper_parameters(const ExportSpec& spec, const ModelConfig& model, const GgufArchitecture& architecture,
                                 const GgufExportLayout& layout, GgufHeader& out);

// Returns the values of rope_freqs.weight if config.json scales frequencies as Llama 3 does; empty otherwise.
Result<std::vector<float>> gguf_rope_divisors(const ExportSpec& spec);

// Adds tokenizer.*, padded to `vocabulary` tokens (the rows of the embedding). Reads tokenizer.json (byte-level BPE
// with a known pre-tokenizer, or SentencePiece's BPE with byte fallback), else tokenizer.model (SentencePiece's BPE),
// tokenizer_config.json and chat_template.jinja. Without a tokenizer file the model is "no_vocab": llama.cpp loads it
// and works on token ids. Errors: any other tokenizer, more tokens than `vocabulary`.
Status add_gguf_tokenizer(const ExportSpec& spec, int64_t vocabulary, GgufHeader& out);

}  // namespace nibble
