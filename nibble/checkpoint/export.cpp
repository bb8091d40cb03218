#include "checkpoint/export.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<Export>> open_export(ExportSpec spec, ExportMode mode) {
    return spec.dialect == Dialect::gguf ? open_gguf_export(std::move(spec), mode)
                                         : open_hf_export(std::move(spec), mode);
}

Status check_export(const ExportSpec& spec) {
    return spec.dialect == Dialect::gguf ? check_gguf_export(spec) : check_hf_export(spec);
}

std::string export_note(const ExportSpec& spec) {
    const auto is = [&](std::string_view name) {
        return std::ranges::any_of(spec.side_files, [&](const auto& file) { return file.name == name; });
    };
    if (spec.dialect != Dialect::gguf || is("tokenizer.json") || is("tokenizer.model")) return {};
    return "the source has no tokenizer.json or tokenizer.model: the GGUF file says \"no_vocab\", and llama.cpp "
           "accepts token ids only";
}

}  // namespace nibble
