// Any checkpoint nibble can read, seen as canonical tensors under Hugging Face names.
//
// A tensor is plain (dtype, shape, bytes) or a quantized matrix (QuantMatrix' canonical form). Dialects (Model
// Optimizer, compressed-tensors, FP8 as DeepSeek and vLLM have it, GGUF) end here: what they call a scale, which way it
// multiplies, how they pack nibbles, permute rows and stack experts is known to this folder only. One matrix per expert
// and unfused q/k/v, always; stacks of experts that cannot be split stay plain 3-D tensors that say why.
#pragma once

#include "base/json.h"
#include "formats/format.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

enum class Dialect : uint8_t { plain, modelopt, compressed_tensors, fp8, mxfp4, gguf };
std::string_view dialect_name(Dialect dialect);  // "plain", "modelopt", "compressed-tensors" ...

struct CheckpointTensor {
    std::string name;            // "model.layers.0.mlp.up_proj.weight"
    std::vector<int64_t> shape;  // of the decoded tensor: [out, in] also when 4-bit
    DType dtype = DType::bf16;   // of the plain bytes; for quantized matrices what they decode to
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    std::optional<float> input_scale;  // multiplier, amax/2688 (NVFP4) or amax/448 (FP8)
    bool listed_module = false;        // named in exclude_modules / ignore
    std::string file;                  // the file that holds it, relative to the checkpoint; empty: it lies in memory
    int64_t stored_bytes = 0;          // codes and all scales
    std::string stored_type;           // as the file spells it: "BF16", "NVFP4", "Q4_1" ...
    std::string whole;                 // experts stacked in one tensor that cannot be split: why

    bool quantized() const { return format != Format::none; }
    int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
    int64_t cols() const;  // product of the other dimensions
};

// What readers do about scales that are no positive numbers: `checked` ones are errors when they are read; `raw` ones
// are handed out as they are, for whoever looks for them (quant/verify.h). What GGUF blocks cannot express stays an
// error.
enum class ScaleReading : uint8_t { checked, raw };

class Checkpoint {
public:
    // A Hugging Face folder or a .gguf file (of a split one its first part). Every tensor a dialect needs must be
    // there, with the right dtype and shape; leftovers that no dialect knows are errors.
    static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& path,
                                                    ScaleReading scales = ScaleReading::checked);
    virtual ~Checkpoint() = default;

    virtual const std::filesystem::path& path() const = 0;
    virtual Dialect dialect() const = 0;
    // config.json without its quantization_config; from metadata for GGUF.
    virtual const Json& config() const = 0;
    // Model-wide KV cache format; k_scale / v_scale are plain F32 scalars named "...self_attn.k_proj.k_scale".
    virtual KvFormat kv() const = 0;
    // In file order. Quantized matrices appear once, under their weight's name; their scales do not appear.
    virtual std::span<const CheckpointTensor> tensors() const = 0;

    // Rows [begin, begin + count) of a plain tensor. Zero-copy where the file allows (then `scratch` stays untouched).
    virtual Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const = 0;
    // Rows of a quantized matrix in canonical form; zero-copy where the file allows. fp8_block128: begin % 128 == 0.
    virtual Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const = 0;
    // The pages behind these rows will not be read again.
    virtual void done_with(size_t index, int64_t begin, int64_t count) const = 0;

    // Files beside the weights that travel along: tokenizer, chat template, code, README. Relative name -> content
    // provider; for GGUF they are made from the metadata (tokenizer.json, tokenizer_config.json,
    // generation_config.json).
    struct SideFile {
        std::string name;
        std::filesystem::path copy_from;  // or, when empty,
        std::string content;
    };
    virtual Result<std::vector<SideFile>> side_files() const = 0;

    // Returns one line for each fact about the files that users should know: a list that contradicts the tensors,
    // scales that are missing.
    virtual std::span<const std::string> notes() const { return {}; }
};

}  // namespace nibble
