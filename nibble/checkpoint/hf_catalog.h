// The tensors of a Hugging Face folder, as canonical tensors that refer to stored ones. A dialect's reader decides
// which modules are quantized and how, and takes their parts. All remaining tensors are plain; one that looks like part
// of a quantized matrix is an error.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/code_grid.h"
#include "checkpoint/stacked_experts.h"
#include "checkpoint/stored_parts.h"
#include "io/model_files.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace nibble {

struct CatalogEntry {
    CheckpointTensor tensor;
    const ModelTensor* data = nullptr;  // plain bytes, or codes
    int64_t first = 0;    // for plain tensors: element of `data` where the tensor begins (one expert of a stack)
    int64_t stride = 0;   // for tensors stored as [in, out]: elements from one input to the next
    int64_t rotated = 0;  // above 0: row 2i + p of each head of this size is row p * rotated / 2 + i of the tensor
    const ModelTensor* block_scales = nullptr;
    const ModelTensor* float_scales = nullptr;
    float tensor_scale = 1.0f;
    std::shared_ptr<const CodeGrid> grid;  // for plain tensors that are decoded from codes; `first` and `stride` are
                                           // then unused
    GridMatrix matrix{};                   // the matrix of the grid; for a whole stack: its orientation
};

class Catalog {
public:
    // `files` must outlive the catalog. `decoded`: the dtype to which quantized matrices decode.
    Catalog(const ModelFiles& files, Dialect dialect, DType decoded, ScaleReading scales = ScaleReading::checked)
        : files_(files), dialect_(dialect), decoded_(decoded), scales_(scales) {}

    // Takes the stacks of quantized experts (stacked_codes.cpp); take_plain() adds their matrices. `activation` returns
    // the format that the configuration declares for the inputs of a stack. Call before quantized_modules(). Error: a
    // stack without its scales, or with wrong shapes.
    using StackInputs = std::function<ActivationFormat(std::string_view module, Format format)>;
    Status take_stacked_codes(const StackInputs& activation = {});

    // Returns the modules of these stacks: "model.layers.0.mlp.experts.gate_up_proj".
    std::vector<std::string> stacked_modules() const;

    // Takes one matrix that is decoded while it is read. `parts`: its tensors, the codes first. `turned`: the grid is
    // [inputs, outputs]. Input scales are dropped.
    void take_grid(std::string_view module, CodeGrid grid, std::string_view stored_type,
                   std::span<const ModelTensor* const> parts, bool turned = false);

    // Returns the modules with at least one tensor that only quantized linears have ("P.weight_scale",
    // "P.weight_packed" ...), in file order.
    std::vector<std::string> quantized_modules() const;

    // Returns the modules of all tensors, in file order.
    std::vector<std::string_view> modules() const;

    // Returns the tensor that holds a part of a module, under any published name of the part; null: none.
    const ModelTensor* find_part(std::string_view module, const StoredPart& part) const;
    const ModelTensor* find(std::string_view module, std::string_view suffix) const;

    // Takes the parts of one quantized linear. Errors: a part is missing or has a dtype or shape that contradicts the
    // scheme; a scalar is not a positive number (ScaleReading::checked). `says` is the source of the scheme for
    // messages: "quant_algo NVFP4". The tensors determine input scales: without one, the inputs stay unquantized
    // (finish() rejects this if only some matrices of a scheme lack it), and a scale that the scheme does not use is
    // dropped. Both add a note.
    Status take_quantized(std::string_view module, Scheme scheme, std::string_view stored_type, std::string_view says);

    // Takes the KV cache scales under their canonical names. `said`: the format in the configuration; no value: the
    // configuration has no such key, and the tensors decide. Error: scales although the configuration states that there
    // is no format.
    Status take_kv_scales(std::optional<KvFormat> said);

    // Takes zero points that are zero, which change nothing. Error: a zero point that is not zero.
    Status take_zero_points();

    // Counts a quantized module that the list of exceptions names; finish() adds a note.
    void add_excluded(std::string_view module);

    // Adds all tensors that are not added yet: as plain tensors, and stacks of experts as one matrix per expert
    // (stacked_experts.h; see `reading`). `listed` returns whether the configuration lists a module as unquantized.
    Status take_plain(const std::function<bool(std::string_view module)>& listed, const Json& config,
                      StackReading reading = StackReading::split);

    std::string file_of(const ModelTensor& tensor) const { return files_.shard_names()[size_t(tensor.shard)]; }
    KvFormat kv() const { return kv_; }
    // Returns the entries in file order. Errors: two entries with the same name; input scales for only some matrices of
    // a scheme.
    Result<std::vector<CatalogEntry>> finish();
    // Returns messages about the source for users, one line each. Complete after finish().
    const std::vector<std::string>& notes() const { return notes_; }
    void add_note(std::string note) { notes_.push_back(std::move(note)); }

private:
    // Number of matrices of one scheme with and without the stored input scale that the scheme needs.
    struct InputScales {
        int64_t stored = 0, missing = 0;
        std::string first_missing;
    };

    // A stack of quantized experts.
    struct CodeStack {
        const ModelTensor* codes = nullptr;
        std::string name;  // name of the decoded tensor
        std::string_view stored_type;
        CodeGrid grid;
        int64_t stored_bytes = 0;
        bool turned = false;  // the decoded tensor is [experts, cols, rows]
        // Set if all experts together are one quantized matrix; none: a stack that is not split is decoded.
        Format format = Format::none;
        const ModelTensor* block_scales = nullptr;
        float tensor_scale = 1.0f;
        const ModelTensor* input_scale = nullptr;
        ActivationFormat activation = ActivationFormat::none;
        std::vector<int64_t> shape() const {
            return {grid.experts, turned ? grid.cols : grid.rows, turned ? grid.rows : grid.cols};
        }
    };
    Status take_blocks(const ModelTensor& blocks, std::string_view stem);
    Status take_stack(const ModelTensor& codes, std::string_view stem, const ModelTensor& scales,
                      const StackInputs& activation);
    Result<Format> whole_format(const ModelTensor& scales, CodeStack& stack) const;
    Status add_code_stack(CodeStack stack, const ExpertStack* experts);
    Status add_stack_matrix(CodeStack stack, CatalogEntry entry);

    Result<const ModelTensor*> take_part(std::string_view module, const StoredPart& part, std::string_view says);
    Status take_input_scale(std::string_view module, const StoredPart& part, std::string_view says,
                            CheckpointTensor& tensor);
    void leave_out_inputs(std::string_view module);
    Status check_inputs();
    void add_experts(const ModelTensor& t, const ExpertStack& stack,
                     const std::function<bool(std::string_view module)>& listed);
    Result<float> read_scalar(const ModelTensor& tensor, bool divides) const;

    const ModelFiles& files_;
    Dialect dialect_;
    DType decoded_;
    ScaleReading scales_;
    KvFormat kv_ = KvFormat::none;
    std::unordered_set<const ModelTensor*> taken_;
    std::vector<CatalogEntry> entries_;
    std::map<std::string, InputScales, std::less<>> inputs_;  // by the text that names the scheme
    std::vector<CodeStack> stacks_;
    int64_t unused_input_scales_ = 0, stack_input_scales_ = 0, excluded_ = 0;
    std::string first_excluded_;
    std::vector<std::string> notes_;
};

// "[64, 128]"
std::string shape_text(std::span<const int64_t> shape);

// The readers of the dialects. Each takes the quantized modules and KV scales of its dialect from the catalog and
// returns the predicate for take_plain(). `quantization`: the configuration; messages name the file that contains it.
using ListedModule = std::function<bool(std::string_view module)>;
Result<ListedModule> read_modelopt(const Json* config_section, const Json* hf_quant_config, Catalog& catalog);
Result<ListedModule> read_compressed_tensors(const Json& quantization, Catalog& catalog);
Result<ListedModule> read_fp8(const Json& quantization, Catalog& catalog);
Result<ListedModule> read_mxfp4(const Json& quantization, Catalog& catalog);
Result<ListedModule> read_gptq(const Json& quantization, Catalog& catalog);
Result<ListedModule> read_awq(const Json& quantization, Catalog& catalog);

}  // namespace nibble
