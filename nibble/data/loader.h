// Loads training rows in an order that depends only on seed and position.
//
// The tokens of a TokenSet form one sequence of documents. A training row is a window of seq + 1 of them (the last one
// is only a label). An epoch is a permutation of all windows. Tokens that do not fill a window are left out: some at
// the front, the others at the end, drawn again for each epoch. Row number p of the run is window permutation(p mod
// windows) of epoch p / windows, whatever the batch size or the number of ranks. So the position of a run is one
// number.
#pragma once

#include "data/batch_source.h"
#include "data/token_set.h"

#include <memory>
#include <optional>

namespace nibble {

struct LoaderOptions {
    int64_t seq = 256;
    uint64_t seed = 1;
    bool shuffle = true;        // false: windows in order from the first token, for validation
    bool cut_documents = true;  // attention and labels end at document boundaries; false: a row is one document
    int rank = 0, ranks = 1;    // rank r reads the r-th part of every batch
};

class DataLoader : public BatchSource {
public:
    // Errors: fewer tokens than a row needs; an invalid rank.
    static Result<DataLoader> create(std::shared_ptr<const TokenSet> tokens, const LoaderOptions& options);

    // Reads the next batch of `rows` rows, of which this rank gets rows / ranks. Errors: `rows` is not a multiple of
    // the ranks; ids beyond the vocabulary (with the file). The position is then unchanged.
    Result<TrainBatch> next(int64_t rows) override;

    // The number of the next row, over all ranks, which checkpoints store.
    int64_t row() const { return row_; }
    void set_row(int64_t row) { row_ = row; }
    Json place() const override { return {{"row", row_}}; }
    Status set_place(const Json& place) override;

    // Windows per epoch.
    int64_t windows() const { return windows_; }
    double epochs() const { return double(row_) / double(windows_); }

private:
    DataLoader(std::shared_ptr<const TokenSet> tokens, const LoaderOptions& options)
        : tokens_(std::move(tokens)), options_(options) {}
    Status add_row(int64_t number, TrainBatch& batch) const;

    std::shared_ptr<const TokenSet> tokens_;
    LoaderOptions options_;
    int64_t windows_ = 0, row_ = 0;
};

}  // namespace nibble
