// Writing a checkpoint in any dialect. All names, shapes and byte offsets follow from the list of tensors, so files are
// laid out before the first value is known, and tensors may be written in any order, from any thread, in row panels.
//
//   auto out = open_export(spec, ExportMode::create);            OUT.partial/ with headers and JSON files
//   (*out)->write_quant(i, row, panel);  (*out)->write_scalars(i, ...);  (*out)->write_plain(j, row, view);
//   (*out)->finish();                                           fsync, rename OUT.partial -> OUT
//
// Nothing under the final name ever looks complete before finish() returns.
//
// GGUF is one file: OUT.gguf.partial/model.gguf becomes OUT.gguf. Whatever else the caller put into the work folder
// goes beside it as OUT.gguf.NAME (OUT.gguf.nibble-report.html), and the manifest as OUT.gguf.nibble.json; of the side
// files only the tokenizer and the chat template are kept, inside the file.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

struct ExportTensor {
    std::string name;  // canonical, "....weight" for matrices that are quantized
    std::vector<int64_t> shape;
    DType dtype = DType::bf16;  // plain tensors
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    bool input_scale = false;    // an input_scale is stored (written later by write_scalars)
    bool listed_module = false;  // goes to exclude_modules / ignore although its name does not ask for it
};

struct ExportSpec {
    Dialect dialect = Dialect::modelopt;  // plain: BF16 folder without quantization_config
    std::filesystem::path out;            // folder, or file for GGUF
    std::vector<ExportTensor> tensors;    // in the source's order
    KvFormat kv = KvFormat::none;
    Json config;  // config.json without quantization_config
    std::vector<Checkpoint::SideFile> side_files;
    int64_t max_shard_bytes = 5'000'000'000;
    std::string manifest;  // text of nibble.json: command, recipe, versions, arithmetic
};

// The weights in the work folder of a GGUF export.
inline constexpr std::string_view gguf_work_file = "model.gguf";

enum class ExportMode : uint8_t { create, resume };

class Export {
public:
    virtual ~Export() = default;
    // The folder being filled; the journal and the lock live here too. finish() removes files named ".nibble-*".
    virtual const std::filesystem::path& work_dir() const = 0;
    // What Checkpoint::open can read before finish(): the work folder, or the GGUF file in it.
    virtual std::filesystem::path checkpoint_path() const { return work_dir(); }
    virtual int64_t total_bytes() const = 0;  // of all files with weights

    // Rows [row, row + view.rows). Views must match the declared tensor; F16/F32 are written as they are.
    virtual Status write_plain(size_t index, int64_t row, const MatrixView& view) = 0;
    virtual Status write_quant(size_t index, int64_t row, const QuantView& panel) = 0;
    // Once per quantized tensor: tensor_scale (ignored by formats without), input_scale (where declared).
    virtual Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) = 0;
    // A checksum of everything stored for this tensor: as it was given to this object, every row once, and as it is
    // read back from the files. They are equal when the files hold what was written, by whichever process.
    virtual uint64_t written_checksum(size_t index) const = 0;
    virtual Result<uint64_t> checksum(size_t index) const = 0;

    // Removes the work folder: for a job that starts over rather than resumes.
    virtual void discard() {}

    // Calls fsync on everything, renames the work folder (or the GGUF inside it) to its final name.
    virtual Status finish() = 0;
};

// Errors before anything is written: a tensor the dialect cannot express, an output that exists, too little disk space.
Result<std::unique_ptr<Export>> open_export(ExportSpec spec, ExportMode mode);

// Checks all that needs no file: whether the dialect holds these tensors under these names, shapes and formats.
Status check_export(const ExportSpec& spec);

// What users should know of an export that can be written and lacks something; empty: nothing.
std::string export_note(const ExportSpec& spec);

// The dialects' own ends of the two functions above.
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::filesystem::path& folder, ScaleReading scales);
Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& file, ScaleReading scales);
Result<std::unique_ptr<Export>> open_hf_export(ExportSpec spec, ExportMode mode);
Result<std::unique_ptr<Export>> open_gguf_export(ExportSpec spec, ExportMode mode);
Status check_hf_export(const ExportSpec& spec);
Status check_gguf_export(const ExportSpec& spec);

}  // namespace nibble
