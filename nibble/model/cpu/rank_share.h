// A rank's share of a model that several ranks run together, and the gathering of activations.
//
// Every rank has some rows of each divided weight (architecture/shards.h) and computes their outputs; the outputs of
// all ranks are gathered where the next operator reads whole rows. No sum crosses ranks, so the bits do not depend on
// their number.
#pragma once

#include "architecture/shards.h"
#include "parallel/communicator.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct Workspace;

// The columns of an activation that each rank computes.
class RankColumns {
public:
    // `of`: by rank, the columns in the order in which the rank has them.
    RankColumns(Communicator& ranks, std::vector<std::vector<RowRange>> of);

    int64_t own() const { return widths_[static_cast<size_t>(ranks_->rank())]; }  // number of columns of this rank
    int64_t all() const { return all_; }

    // Writes the rows y [n, all()] from the own columns of all ranks; `stride` floats from row to row of y. With
    // Workspace::bf16(), the values must be BF16 numbers.
    Status gather(const float* own, int64_t n, float* y, int64_t stride, Workspace& work) const;

private:
    Communicator* ranks_;
    std::vector<std::vector<RowRange>> of_;
    std::vector<int64_t> widths_;
    int64_t all_ = 0;
};

using RankColumnsPtr = std::shared_ptr<const RankColumns>;

class RankShare {
public:
    // Error: the model cannot be divided by this number of ranks. `ranks` must outlive the model.
    static Result<std::shared_ptr<const RankShare>> create(const ModelConfig& model, Communicator& ranks);

    Communicator& ranks() const { return *ranks_; }
    int rank() const { return ranks_->rank(); }
    int size() const { return ranks_->size(); }

    // Returns whether ranks have different rows of a tensor.
    bool divides(const std::string& tensor) const;
    // Returns whether each rank has all rows of this tensor or none: it is part of an expert.
    bool whole_or_none(const std::string& tensor) const;
    // Returns this rank's rows of a tensor.
    std::vector<RowRange> rows(const std::string& tensor) const;
    // Returns this rank's elements of a vector that is divided as segment `index` of a tensor's rows.
    std::vector<float> own_rows(const std::vector<float>& all, const std::string& tensor, size_t index = 0) const;
    // Returns the columns that a linear with this weight computes on each rank. `weights`: of several linears, whose
    // outputs follow one another.
    RankColumnsPtr columns(std::span<const std::string> weights) const;
    // Returns the columns of an activation that is divided as segment `index` of a tensor's rows, with another number
    // of columns for each part.
    RankColumnsPtr columns_like(const std::string& tensor, int64_t columns, size_t index = 0) const;
    // Returns the number of parts (heads ...) that this rank has of segment `index` of a tensor.
    int64_t own_parts(const std::string& tensor, size_t index = 0) const;
    // Completes the rows y [.., width] on every rank: rank r has those of of[r]. With Workspace::bf16(), the values
    // must be BF16 numbers.
    Status gather_rows(float* y, int64_t width, std::span<const RowRange> of, Workspace& work) const;
    // Returns the experts of a rank, of `experts` in a block.
    RowRange experts(int64_t experts, int rank) const;

private:
    RankShare(const ModelConfig& model, Communicator& ranks);
    const TensorEntry* find(const std::string& tensor) const;
    // A tensor of `rows` rows that is divided as segment `index` of another.
    TensorEntry like(const std::string& tensor, int64_t rows, size_t index) const;

    Communicator* ranks_;
    std::vector<TensorEntry> tensors_;
    std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace nibble
