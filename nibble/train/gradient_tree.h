// The gradient of a step, per parameter id: rows of the step are added in a tree that depends on their number alone,
// never on batches, threads, ranks or devices.
//
// The tree: a node of level k holds the sum of the 2^k rows from a multiple of 2^k on; two nodes that are the halves of
// one of the next level are added (the earlier one is the left operand); at the end what is left is added from the
// last node to the first. Inside a row what comes for one tensor is added in the order in which it comes. The
// embedding's rows are kept sparse.
//
// Ranks have rows of their own, and so some of the nodes. The owner of a parameter gets all of them, in the order of
// rows, and goes on with the same rule: the same bits for any number of ranks.
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
    // `head`: the parameter that "lm_head.weight" stands for when the head is tied to the embedding. `part`: the model
    // has more tensors than these parameters; what comes for others is dropped, not an error.
    GradientTree(const Parameters& parameters, std::string head, bool part, ThreadPool& pool);

    // The next row is `first_row` of the step.
    void begin_step(int64_t first_row = 0);
    // Of the row in hand. Error: no parameter of that name or size.
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override;
    // scale * gradient[i] to row ids[i] of a matrix; gradient [ids.size(), cols].
    Status add_rows(const std::string& tensor, std::span<const int32_t> ids, const float* gradient, int64_t cols,
                    float scale);
    void end_row();
    // Error: a rank has ended.
    Status end_step(const TrainRanks& ranks = {});

    // After end_step(). Empty: nothing came for this parameter (an expert without tokens), or another rank owns it.
    std::span<const float> gradient(size_t id) const { return slots_[id].total; }
    // sqrt of the sum of squares over all parameters of all ranks, in FP64: runs of 4096 elements, ascending.
    Result<double> norm(const TrainRanks& ranks = {}) const;

private:
    using Values = std::vector<float>;
    struct SparseRows {  // ids ascending; values [ids.size(), cols]
        std::vector<int32_t> ids;
        Values values;
    };
    struct Node {
        int64_t begin = 0, level = 0;
        Values values;  // empty: nothing came
        SparseRows sparse;
        int64_t rows() const { return int64_t{1} << level; }
    };
    struct Slot {
        Values row, total;          // empty: nothing came
        std::vector<Node> nodes;    // by rising begin
        std::vector<Values> spare;  // memory
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
