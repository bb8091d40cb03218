// Bookkeeping of an export: how the tensors were declared, and what has been written of them.
#pragma once

#include "base/mapped_file.h"
#include "checkpoint/export.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

namespace nibble {

// Thread-safe.
class ExportLedger {
public:
    // `tensors` must outlive the ledger. `parts`: number of stored parts, each with a checksum.
    ExportLedger(std::span<const ExportTensor> tensors, size_t parts)
        : tensors_(tensors), rows_(tensors.size()), scalars_(tensors.size()), checksums_(parts) {}

    // Return tensor `index` if rows [row, row + view.rows) may be written to it. Errors: the tensor is not declared
    // plain (or quantized), another dtype or format, another number of columns, rows out of range.
    Result<const ExportTensor*> plain(size_t index, int64_t row, const MatrixView& view) const;
    Result<const ExportTensor*> quantized(size_t index, int64_t row, const QuantView& panel) const;
    // Returns tensor `index` if it has the scalar scales that were declared. Error: it does not.
    Result<const ExportTensor*> scalars(size_t index, const std::optional<float>& input_scale) const;

    void wrote_rows(size_t index, int64_t rows) { rows_[index] += rows; }
    void wrote_scalars(size_t index) { scalars_[index] = true; }
    void wrote(size_t part, uint64_t checksum) { checksums_[part] += checksum; }
    uint64_t checksum(size_t part) const { return checksums_[part]; }
    void forget(size_t part) { checksums_[part] = 0; }

    // Checks that all rows and scalars were written; missing rows would be zeros in the file. Only for runs without a
    // resume: the caller's journal records what an earlier process wrote. `has_scalars(i)`: whether the file stores
    // scalars for tensor i.
    template <class HasScalars>
    Status check_complete(HasScalars has_scalars) const {
        for (size_t i = 0; i < tensors_.size(); ++i) NIBBLE_CHECK(check_complete(i, has_scalars(i)));
        return Ok{};
    }

private:
    Result<const ExportTensor*> tensor(size_t index, bool quantized) const;
    Status check_complete(size_t index, bool has_scalars) const;

    std::span<const ExportTensor> tensors_;
    std::vector<std::atomic<int64_t>> rows_;
    std::vector<std::atomic<bool>> scalars_;
    std::vector<std::atomic<uint64_t>> checksums_;
};

// Returns the sum modulo 2^64 of the XXH3 hashes of whole rows of one part of a tensor (codes, scales ...), each seeded
// with its position. `offset`: bytes from the start of the part. Sums of disjoint rows add up in any order.
uint64_t rows_checksum(Bytes bytes, int64_t row_bytes, int64_t offset, int part);

// Returns the same checksum of a part that is read back from a file; `read(offset, bytes)` fills `bytes` from that
// offset of the part.
template <class Read>
Result<uint64_t> read_back_checksum(int64_t part_bytes, int64_t row_bytes, int part, Read read) {
    constexpr int64_t chunk = int64_t{1} << 20;
    // The buffer is no larger than needed, because there are models with 100,000 tiny tensors.
    std::vector<std::byte> buffer(static_cast<size_t>(
        std::min(std::max(chunk - chunk % std::max<int64_t>(row_bytes, 1), row_bytes), part_bytes)));
    uint64_t sum = 0;
    for (int64_t at = 0; at < part_bytes;) {
        const std::span part_of =
            std::span(buffer).first(std::min(buffer.size(), static_cast<size_t>(part_bytes - at)));
        NIBBLE_CHECK(read(at, part_of));
        sum += rows_checksum(part_of, row_bytes, at, part);
        at += static_cast<int64_t>(part_of.size());
    }
    return sum;
}

}  // namespace nibble
