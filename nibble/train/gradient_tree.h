// Adds the gradient of a step, per parameter id. The rows of a step are added in a tree that depends only on their
// number, never on batches, threads, ranks or devices.
//
// The tree: a node of level k holds the sum of 2^k adjacent rows that begin at a multiple of 2^k. Two nodes that are
// the halves of a node of the next level are added (the earlier one is the left operand). At the end the remaining
// nodes are added from the last to the first. Within a row, contributions to one tensor are added in the order of
// arrival. Gradients of the embedding stay sparse.
//
// Each rank has some of the rows, and so some of the nodes. The owner of a parameter receives all its nodes, in the
// order of rows, and applies the same rule. So the bits do not depend on the number of ranks.
#pragma once

#include "model/cpu/block.h"
#include "model/parameters.h"
#include "train/train_ranks.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble {

class GradientTree : public GradientSink {
public:
    // `head`: the parameter that "lm_head.weight" denotes if the head is tied to the embedding. `part`: the model has
    // more tensors than these parameters, and gradients of the others are dropped instead of an error.
    GradientTree(const Parameters& parameters, std::string head, bool part, ThreadPool& pool);

    // Starts a step whose next row has the number `first_row`.
    void begin_step(int64_t first_row = 0);
    // Adds a gradient for the current row. Error: no parameter has this name or size.
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override;
    // Adds scale * gradient[i] to row ids[i] of a matrix. gradient [ids.size(), cols].
    Status add_rows(const std::string& tensor, std::span<const int32_t> ids, const float* gradient, int64_t cols,
                    float scale);
    void end_row();
    // Error: a rank has ended.
    Status end_step(const TrainRanks& ranks = {});

    // Returns the sum; valid after end_step(). Empty: no gradient arrived (an expert without tokens), or another rank
    // owns the parameter.
    std::span<const float> gradient(size_t id) const { return slots_[id].total; }
    // Returns the square root of the sum of squares over all parameters of all ranks: FP64, in runs of 4096 elements in
    // ascending order.
    Result<double> norm(const TrainRanks& ranks = {}) const;

private:
    using Values = std::vector<float>;
    struct SparseRows {  // ids ascending; values [ids.size(), cols]
        std::vector<int32_t> ids;
        Values values;
    };
    struct Node {
        int64_t begin = 0, level = 0;
        Values values;  // empty: no gradient arrived
        SparseRows sparse;
        int64_t rows() const { return int64_t{1} << level; }
    };
    struct Slot {
        Values row, total;          // empty: no gradient arrived
        std::vector<Node> nodes;    // by ascending `begin`
        std::vector<Values> spare;  // buffers for reuse
        SparseRows sparse_row;
        int64_t cols = 0;
    };
    void push(Slot& slot, Node node) const;
    void finish(size_t id);
    Status to_owners(const TrainRanks& ranks);
    std::vector<double> squares(const Slot& slot) const;
    void add_into(Values& to, const float* from) const;
    static SparseRows merge(const SparseRows& a, const SparseRows& b, int64_t cols);
    Values take(Slot& slot, size_t size) const;
    void give(Slot& slot, Values values) const;

    const Parameters& parameters_;
    std::string head_;
    bool part_;
    ThreadPool& pool_;
    std::vector<Slot> slots_;
    int64_t next_row_ = 0;
};

}  // namespace nibble
