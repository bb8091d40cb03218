// A checkpoint of any supported kind, as canonical tensors under Hugging Face names.
//
// A tensor is plain (dtype, shape, bytes) or a quantized matrix (the canonical form of QuantMatrix). Only this folder
// knows the dialects (Model Optimizer, compressed-tensors, FP8 as in DeepSeek and vLLM, GPTQ, AWQ, GGUF): the names and
// directions of their scales, and how they pack nibbles, permute rows and stack experts. Canonical tensors have one
// matrix per expert and unfused q/k/v. A stack that engines read as one parameter (GPT-OSS) is one matrix of all
// experts' rows. A stack of experts that cannot be split stays a plain 3-D tensor with the reason.
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

enum class Dialect : uint8_t { plain, modelopt, compressed_tensors, fp8, mxfp4, gptq, awq, gguf };
std::string_view dialect_name(Dialect dialect);  // "plain", "modelopt", "compressed-tensors" ...

struct CheckpointTensor {
    std::string name;            // "model.layers.0.mlp.up_proj.weight"
    std::vector<int64_t> shape;  // shape after decoding: [out, in] also for 4-bit codes
    DType dtype = DType::bf16;   // dtype of plain tensors; for quantized matrices the dtype they decode to
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    std::optional<float> input_scale;  // multiplier: amax / 2688 (NVFP4) or amax / 448 (FP8)
    bool listed_module = false;        // named in exclude_modules / ignore
    std::string file;          // the file that holds it, relative to the checkpoint; empty: the tensor is in memory
    int64_t stored_bytes = 0;  // codes and all scales
    std::string stored_type;   // the file's own name for the type: "BF16", "NVFP4", "Q4_1" ...
    std::string whole;         // set for experts stacked in one tensor that cannot be split: the reason
    int64_t experts = 0;       // above 0: a stack in one matrix [experts * outputs, inputs]; folders store it as
                               // [experts, inputs, outputs]

    bool quantized() const { return format != Format::none; }
    int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
    int64_t cols() const;  // product of the other dimensions
};

// How readers treat scales that are not positive numbers. `checked`: reading them is an error. `raw`: they are returned
// unchanged, for callers that search for them (quant/verify.h). Scales that GGUF blocks cannot represent are always an
// error.
enum class ScaleReading : uint8_t { checked, raw };

// How plain experts of Llama 4 are read, whose stacks [experts, in, out] Model Optimizer exports as stacks. `split`:
// one matrix per expert and projection; `whole`: one matrix of all experts' rows.
enum class StackReading : uint8_t { split, whole };

class Checkpoint {
public:
    // Opens a Hugging Face folder or a .gguf file (of a split GGUF its first part). Errors: a tensor that a dialect
    // requires is missing or has the wrong dtype or shape; a tensor that no dialect knows.
    static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& path,
                                                    ScaleReading scales = ScaleReading::checked,
                                                    StackReading stacks = StackReading::split);
    virtual ~Checkpoint() = default;

    virtual const std::filesystem::path& path() const = 0;
    virtual Dialect dialect() const = 0;
    // Returns config.json without its quantization_config; for GGUF it is made from the metadata.
    virtual const Json& config() const = 0;
    // Returns the format of the KV cache for the whole model. The scales k_scale and v_scale are plain F32 scalars
    // named "...self_attn.k_proj.k_scale".
    virtual KvFormat kv() const = 0;
    // Returns the tensors in file order. A quantized matrix appears once, under its weight's name; its scales are not
    // listed.
    virtual std::span<const CheckpointTensor> tensors() const = 0;

    // Returns rows [begin, begin + count) of a plain tensor. Zero-copy if the file permits (then `scratch` is not
    // used). Errors of both readers: the file became shorter, or scales are invalid (ScaleReading).
    virtual Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const = 0;
    // Returns rows of a quantized matrix in canonical form; zero-copy if the file permits. fp8_block128 requires begin
    // % 128 == 0.
    virtual Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const = 0;
    // States that these rows will not be read again, so that mapped pages can be released.
    virtual void done_with(size_t index, int64_t begin, int64_t count) const = 0;

    // Files that are copied along with the weights: tokenizer, chat template, code, README. For GGUF they are made from
    // the metadata (tokenizer.json, tokenizer_config.json, generation_config.json).
    struct SideFile {
        std::string name;
        std::filesystem::path copy_from;  // source file; if empty, `content` is used
        std::string content;
    };
    virtual Result<std::vector<SideFile>> side_files() const = 0;

    // Returns one line per fact that users should know about the files: a list that contradicts the tensors, missing
    // scales.
    virtual std::span<const std::string> notes() const { return {}; }
};

}  // namespace nibble
