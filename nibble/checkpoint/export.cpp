#include "checkpoint/export.h"

namespace nibble {

Result<std::unique_ptr<Export>> open_export(ExportSpec spec, ExportMode mode) {
    return spec.dialect == Dialect::gguf ? open_gguf_export(std::move(spec), mode)
                                         : open_hf_export(std::move(spec), mode);
}

}  // namespace nibble
