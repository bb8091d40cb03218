// Matrices of a checkpoint on a GPU as they are stored, one below the other. The engine's layouts cannot be read by
// rows: the way back decodes these to BF16 when it needs them.
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
    // Tensors by name and their numbers in the checkpoint.
    using Numbers = std::unordered_map<std::string, size_t>;
    static Numbers numbers(const Checkpoint& checkpoint);
    // Errors: a tensor that is not there.
    static Result<FrozenWeight> plan(const Checkpoint& checkpoint, const Numbers& numbers,
                                     const std::vector<std::string>& tensors);

    size_t parts() const { return parts_.size(); }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    const std::string& stored(size_t part) const { return parts_[part].stored; }  // its type, as a table names it
    int64_t bytes() const;                                                        // of the arena
    // F16 and F32 become BF16.
    Status load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);
    // BF16 [rows, cols]: where they lie, or decoded into scratch memory.
    Result<const std::byte*> values(DeviceStep& step) const { return values(step, 0, parts_.size()); }
    // Of some parts.
    Result<const std::byte*> values(DeviceStep& step, size_t first, size_t count) const;
    int64_t scratch_bytes() const { return decodes_ ? 2 * rows_ * cols_ : 0; }

private:
    struct Part {
        size_t tensor = 0;
        std::string stored;
        QuantView codes;  // on the device; format none: plain
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
