#include "checkpoint/export_ledger.h"

#include "checkpoint/hf_layout.h"
#include "io/json_events.h"

#include <xxhash.h>

namespace nibble {

Result<const ExportTensor*> ExportLedger::tensor(size_t index, bool quantized) const {
    if (index >= tensors_.size()) return fail("no tensor number {}, there are {}", index, tensors_.size());
    const ExportTensor& t = tensors_[index];
    if ((t.format != Format::none) == quantized) return &t;
    return fail("{}: was declared {}", show_name(t.name), quantized ? "plain" : "quantized");
}

Result<const ExportTensor*> ExportLedger::plain(size_t index, int64_t row, const MatrixView& view) const {
    NIBBLE_TRY(const ExportTensor* t, tensor(index, false));
    const int64_t rows = rows_of(*t), cols = cols_of(*t);
    if (view.dtype != t->dtype || view.cols != cols || row < 0 || view.rows < 0 || view.rows > rows - row)
        return fail("{}: rows [{}, {}) of {} x {} do not fit {} x {} {}", show_name(t->name), row, row + view.rows,
                    dtype_name(view.dtype), view.cols, rows, cols, dtype_name(t->dtype));
    return t;
}

Result<const ExportTensor*> ExportLedger::quantized(size_t index, int64_t row, const QuantView& panel) const {
    NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
    const int64_t rows = rows_of(*t), cols = cols_of(*t);
    if (panel.format != t->format || panel.cols != cols || row < 0 || panel.rows < 0 || panel.rows > rows - row)
        return fail("{}: rows [{}, {}) x {} of {} do not fit {} x {} of {}", show_name(t->name), row, row + panel.rows,
                    panel.cols, format_name(panel.format), rows, cols, format_name(t->format));
    return t;
}

Result<const ExportTensor*> ExportLedger::scalars(size_t index, const std::optional<float>& input_scale) const {
    NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
    if (input_scale.has_value() != t->input_scale)
        return fail("{}: {}", show_name(t->name),
                    t->input_scale ? "an input_scale was declared and is missing" : "no input_scale was declared");
    return t;
}

Status ExportLedger::check_complete(size_t index, bool has_scalars) const {
    const ExportTensor& t = tensors_[index];
    if (cols_of(t) != 0 && rows_[index] < rows_of(t))
        return fail("{}: {} of {} rows were written", show_name(t.name), rows_[index].load(), rows_of(t));
    if (has_scalars && !scalars_[index]) return fail("{}: its scalar scales were not written", show_name(t.name));
    return Ok{};
}

uint64_t rows_checksum(Bytes bytes, int64_t row_bytes, int64_t offset, int part) {
    constexpr uint64_t parts = 8;
    uint64_t sum = 0, row = row_bytes ? static_cast<uint64_t>(offset / row_bytes) : 0;
    for (; !bytes.empty(); ++row) {
        const Bytes one = bytes.first(std::min(bytes.size(), static_cast<size_t>(row_bytes)));
        sum += XXH3_64bits_withSeed(one.data(), one.size(), row * parts + static_cast<uint64_t>(part));
        bytes = bytes.subspan(one.size());
    }
    return sum;
}

}  // namespace nibble
