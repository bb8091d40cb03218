// Matrices of a checkpoint on a GPU in their stored format, stacked by rows. The engine's layouts cannot be read row by
// row, so the backward pass decodes these copies to BF16.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/device/step.h"
#include "tensor/quant_matrix.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class FrozenWeight {
public:
    // Index of each tensor in the checkpoint, by name.
    using Numbers = std::unordered_map<std::string, size_t>;
    static Numbers numbers(const Checkpoint& checkpoint);
    // Error: a tensor is missing.
    static Result<FrozenWeight> plan(const Checkpoint& checkpoint, const Numbers& numbers,
                                     const std::vector<std::string>& tensors);

    size_t parts() const { return parts_.size(); }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    const std::string& stored(size_t part) const { return parts_[part].stored; }  // its type, for tables
    int64_t bytes() const;                                                        // in the arena
    // F16 and F32 become BF16.
    Status load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);
    // Returns BF16 [rows, cols]: the stored values, or values decoded into scratch memory.
    Result<const std::byte*> values(DeviceStep& step) const { return values(step, 0, parts_.size()); }
    // The same for `count` parts.
    Result<const std::byte*> values(DeviceStep& step, size_t first, size_t count) const;
    int64_t scratch_bytes() const { return decodes_ ? 2 * rows_ * cols_ : 0; }

private:
    struct Part {
        size_t tensor = 0;
        std::string stored;
        QuantView codes;  // in device memory; format none: plain
        const float* tensor_scale = nullptr;
        std::byte* plain = nullptr;  // BF16
    };
    Status load_codes(Part& part, const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);
    Status load_plain(const Part& part, const Checkpoint& checkpoint, const Stream& stream) const;

    std::vector<Part> parts_;
    int64_t rows_ = 0, cols_ = 0;
    bool decodes_ = false;
};

}  // namespace nibble
