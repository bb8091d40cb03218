// Presents a GGUF file as the Hugging Face model from which it was made: canonical names and shapes, rows in Hugging
// Face order, one matrix per expert, decoded weights.
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
    DType dtype = DType::bf16;           // dtype in a Hugging Face folder: BF16, or F32 where published models use F32
    const GgufTensor* source = nullptr;  // owned by the file
    GgufTransform transform = GgufTransform::none;
    int64_t expert = -1;   // index in a stack; -1: the whole tensor
    int64_t head_dim = 0;  // for transform rope; else 0
    float scale = 1.0f;    // value of the `.scale` tensor of an NVFP4 tensor, a factor of decoding

    int64_t rows() const { return shape[0]; }
    int64_t cols() const;  // product of the other dimensions; 1 for a vector
    Bytes data() const;    // the blocks in the file, in GGUF's order of rows
};

class GgufSource {
public:
    // Opens a file. Errors (open() puts the path first): those of GgufFile and gguf_model_config(); a tensor without a
    // Hugging Face name, with a wrong shape, of a type without decoder, or of a layer beyond block_count; a layer that
    // lacks a required tensor; a scale without its weight.
    static Result<GgufSource> open(const std::filesystem::path& path, ScaleReading scales = ScaleReading::checked);
    static Result<GgufSource> from(GgufFile file, ScaleReading scales = ScaleReading::checked);

    const GgufFile& file() const { return *file_; }
    const Json& config() const { return config_; }                             // config.json
    const std::vector<GgufSourceTensor>& tensors() const { return tensors_; }  // in file order

    // Returns the activation scale of a tensor (X.input_scale; for a slice of a stack, its expert's); no value: there
    // is none.
    Result<std::optional<float>> input_scale(const GgufSourceTensor& tensor) const;
    // Returns the blocks of one row in Hugging Face order. Precondition: a matrix, 0 <= row < rows().
    Bytes row_blocks(const GgufSourceTensor& tensor, int64_t row) const;

    // Returns the tensors of the file that a BF16 model cannot hold: NVFP4 activation scales (X.input_scale).
    const std::vector<std::string>& left_out() const { return left_out_; }
    // Returns one line per message for the user.
    const std::vector<std::string>& notes() const { return notes_; }

    // Writes rows [begin, end) in Hugging Face order, (end - begin) * cols() values. Thread-safe. Errors: a range
    // outside the tensor; numbers that are invalid for the architecture (a state matrix that is not negative).
    Status read_rows(const GgufSourceTensor& tensor, int64_t begin, int64_t end, float* out) const;
    // Writes the same values, rounded to the nearest BF16 (ties to even).
    Status read_rows_bf16(const GgufSourceTensor& tensor, int64_t begin, int64_t end, uint16_t* out) const;

private:
    explicit GgufSource(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}
    Status map_tensors();
    // By GGUF name: one part, or one per expert.
    using GgufParts = std::unordered_map<std::string, std::vector<const GgufPart*>>;
    Status add(const GgufParts& parts, const GgufTensor& tensor, std::string_view architecture);
    Result<std::vector<float>> scales_of(const GgufTensor& tensor, std::string_view suffix, int64_t count) const;
    Status check_scale(const GgufTensor& scale, std::string_view base) const;

    ScaleReading scales_ = ScaleReading::checked;
    std::unique_ptr<GgufFile> file_;  // a pointer, so that addresses in tensors_ stay valid when the source moves
    Json config_;
    std::vector<GgufSourceTensor> tensors_;
    std::vector<std::string> left_out_, notes_;
};

}  // namespace nibble
