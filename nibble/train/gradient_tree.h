// The gradient of a step, per parameter id: rows of the step are added in a tree that depends on their number alone,
// never on batches, threads or devices.
//
// The tree is a binary counter: level k holds the sum of 2^k neighbouring rows; two neighbours of one level are added
// (the earlier one is the left operand) and go up; at the end the levels are added from the lowest up. Inside a row
// what comes for one tensor is added in the order in which it comes. The embedding's rows are kept sparse.
#pragma once

#include "model/parameters.h"
#include "model/cpu/block.h"

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

    void begin_step();
    // Of the row in hand. Error: no parameter of that name or size.
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override;
    // scale * gradient[i] to row ids[i] of a matrix; gradient [ids.size(), cols].
    Status add_rows(const std::string& tensor, std::span<const int32_t> ids, const float* gradient, int64_t cols,
                    float scale);
    void end_row();
    void end_step();

    // After end_step(). Empty: nothing came for this parameter (an expert without tokens).
    std::span<const float> gradient(size_t id) const { return slots_[id].total; }
    int64_t rows() const { return count_; }
    // sqrt of the sum of squares over all parameters, in FP64: runs of 4096 elements, ascending.
    double norm() const;

private:
    using Values = std::vector<float>;
    struct SparseRows {  // ids ascending; values [ids.size(), cols]
        std::vector<int32_t> ids;
        Values values;
    };
    struct Slot {
        Values row, total;           // empty: nothing came
        std::vector<Values> levels;  // likewise
        std::vector<Values> spare;   // memory
        SparseRows sparse_row;
        std::vector<SparseRows> sparse_levels;
        int64_t cols = 0;
    };
    void add_into(Values& to, const float* from) const;
    static SparseRows merge(const SparseRows& a, const SparseRows& b, int64_t cols);
    Values take(Slot& slot, size_t size) const;
    void give(Slot& slot, Values values) const;

    const Parameters& parameters_;
    std::string head_;
    bool part_;
    ThreadPool& pool_;
    std::vector<Slot> slots_;
    int64_t count_ = 0;
};

}  // namespace nibble
