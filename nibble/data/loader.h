// Rows of training, in an order that follows from seed and place alone.
//
// The tokens of a TokenSet lie in a row, documents one after the other; a training row is a window of seq + 1 of them
// (the last one is a label only). An epoch is a permutation of all windows; what does not fill a window is left out, a
// part of it at the front and the rest at the end, drawn anew for each epoch. Row number p of the run is window
// permutation(p mod windows) of epoch p / windows, whatever the batch or the number of ranks; so the place of a run is
// one number.
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
    bool cut_documents = true;  // attention and labels end at documents; false: a row is one document
    int rank = 0, ranks = 1;    // rank r reads the r-th part of every batch
};

class DataLoader : public BatchSource {
public:
    // Error: fewer tokens than a row needs, a rank that is none.
    static Result<DataLoader> create(std::shared_ptr<const TokenSet> tokens, const LoaderOptions& options);

    // The next batch of `rows` rows, of which this rank gets rows / ranks. Errors: a number that the ranks do not
    // divide, ids beyond the vocabulary (with the file); the place then is as before.
    Result<TrainBatch> next(int64_t rows) override;

    // The number of the next row, of all ranks together: what a checkpoint keeps.
    int64_t row() const { return row_; }
    void set_row(int64_t row) { row_ = row; }
    Json place() const override { return {{"row", row_}}; }
    Status set_place(const Json& place) override;

    // Windows of an epoch.
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
