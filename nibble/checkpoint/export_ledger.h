// What every kind of export keeps about its tensors: how they were declared, and what has been written of them.
#pragma once

#include "base/mapped_file.h"
#include "checkpoint/export.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

namespace nibble {

// Threads may write at once.
class ExportLedger {
public:
    // `tensors` must outlive the ledger.
    explicit ExportLedger(std::span<const ExportTensor> tensors)
        : tensors_(tensors), rows_(tensors.size()), scalars_(tensors.size()), checksums_(tensors.size()) {}

    // Rows [row, row + view.rows) of tensor `index`, or an error: not declared plain (quantized), another dtype
    // (format), number of columns, or rows that are not there.
    Result<const ExportTensor*> plain(size_t index, int64_t row, const MatrixView& view) const;
    Result<const ExportTensor*> quantized(size_t index, int64_t row, const QuantView& panel) const;
    // Tensor `index` as the owner of scalar scales; error when they are not those that were declared.
    Result<const ExportTensor*> scalars(size_t index, const std::optional<float>& input_scale) const;

    void wrote_rows(size_t index, int64_t rows) { rows_[index] += rows; }
    void wrote_scalars(size_t index) { scalars_[index] = true; }
    void wrote(size_t index, uint64_t checksum) { checksums_[index] += checksum; }
    uint64_t checksum(size_t index) const { return checksums_[index]; }

    // Forgotten rows would be zeros in the file. Only after a run without a resume: what an earlier process wrote, the
    // caller's journal knows. `has_scalars(i)`: whether the file stores any for tensor i.
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

// Whole rows of one part of a tensor (its codes, its scales ...), from `offset` bytes into the part on: the sum, modulo
// 2^64, of XXH3 of each row seeded with its place. Sums of disjoint rows add up, in any order.
uint64_t rows_checksum(Bytes bytes, int64_t row_bytes, int64_t offset, int part);

// The same of what is read back from a file; `read(offset, bytes)` fills `bytes` from that offset of the part on.
template <class Read>
Result<uint64_t> read_back_checksum(int64_t part_bytes, int64_t row_bytes, int part, Read read) {
    constexpr int64_t chunk = int64_t{1} << 20;
    // As large as needed: there are models with 100,000 tiny tensors.
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
