// A GGUF file as the Hugging Face model it was made from: canonical names and shapes, rows in Hugging Face order, one
// matrix per expert, weights decoded.
//
//   NIBBLE_TRY(auto source, GgufSource::open("model.gguf"));
//   for (const GgufSourceTensor& t : source.tensors()) source.read_rows_bf16(t, 0, t.rows(), out);
#pragma once

#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_names.h"

#include <memory>
#include <unordered_map>

namespace nibble {

struct GgufSourceTensor {
    std::string name;                    // Hugging Face
    std::vector<int64_t> shape;          // Hugging Face
    DType dtype = DType::bf16;           // in a Hugging Face folder: BF16, or F32 where the published models have it
    const GgufTensor* source = nullptr;  // owned by the file
    GgufTransform transform = GgufTransform::none;
    int64_t expert = -1;   // slice of a stack, -1: the whole tensor
    int64_t head_dim = 0;  // of transform rope; else 0
    float scale = 1.0f;    // the `.scale` beside an NVFP4 tensor; multiplies on decode

    int64_t rows() const { return shape[0]; }
    int64_t cols() const;  // product of the other dimensions; 1 for a vector
    Bytes data() const;    // the blocks in the file, in GGUF's row order
};

class GgufSource {
public:
    // Errors: what GgufFile and gguf_model_config refuse; a tensor without a Hugging Face name, with a shape that does
    // not fit, of a type without decoder, of a layer beyond block_count; a layer that lacks a tensor its model needs; a
    // scale without its weight. Errors of open() start with the path.
    static Result<GgufSource> open(const std::filesystem::path& path, ScaleReading scales = ScaleReading::checked);
    static Result<GgufSource> from(GgufFile file, ScaleReading scales = ScaleReading::checked);

    const GgufFile& file() const { return *file_; }
    const Json& config() const { return config_; }                             // config.json
    const std::vector<GgufSourceTensor>& tensors() const { return tensors_; }  // in file order

    // The activation scale stored beside the tensor (X.input_scale), this expert's for a slice of a stack.
    Result<std::optional<float>> input_scale(const GgufSourceTensor& tensor) const;
    // The blocks of one row in Hugging Face order. Precondition: a matrix, 0 <= row < rows().
    Bytes row_blocks(const GgufSourceTensor& tensor, int64_t row) const;

    // Tensors of the file that no BF16 model can hold: NVFP4 activation scales (X.input_scale).
    const std::vector<std::string>& left_out() const { return left_out_; }
    // One line each for the user.
    const std::vector<std::string>& notes() const { return notes_; }

    // Rows [begin, end) in Hugging Face order, (end - begin) * cols() values. Thread-safe. Errors: a range outside the
    // tensor, numbers that cannot be the architecture's (a state matrix that is not negative).
    Status read_rows(const GgufSourceTensor& tensor, int64_t begin, int64_t end, float* out) const;
    // The same, each value rounded to nearest even.
    Status read_rows_bf16(const GgufSourceTensor& tensor, int64_t begin, int64_t end, uint16_t* out) const;

private:
    explicit GgufSource(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}
    Status map_tensors();
    // By GGUF name: one part, or one for each expert.
    using GgufParts = std::unordered_map<std::string, std::vector<const GgufPart*>>;
    Status add(const GgufParts& parts, const GgufTensor& tensor, std::string_view architecture);
    Result<std::vector<float>> scales_of(const GgufTensor& tensor, std::string_view suffix, int64_t count) const;
    Status check_scale(const GgufTensor& scale, std::string_view base) const;

    ScaleReading scales_ = ScaleReading::checked;
    std::unique_ptr<GgufFile> file_;  // behind a pointer: tensors_ points into it, and the source moves
    Json config_;
    std::vector<GgufSourceTensor> tensors_;
    std::vector<std::string> left_out_, notes_;
};

}  // namespace nibble
