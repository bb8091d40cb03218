#include "quant/kept_scales.h"

#include "checkpoint/exact_scales.h"
#include "checkpoint/work_folder.h"
#include "io/atomic_file.h"

namespace nibble {

Status keep_exact_scales(Dialect dialect, const std::string& manifest, const Export& out, QuantReport& report) {
    if (dialect != Dialect::compressed_tensors) return Ok{};
    ExactScales exact;
    for (const TensorReport& t : report.tensors) add_inexact(exact, t.name, t.format, t.tensor_scale, t.input_scale);
    if (exact.empty()) return Ok{};
    report.warnings.push_back(exact_scales_note(exact));
    NIBBLE_TRY(const std::string text, with_exact_scales(manifest, exact));
    return write_file_atomically(out.work_dir() / manifest_name, text);
}

}  // namespace nibble
