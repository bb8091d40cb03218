// Writes a checkpoint in any dialect. All names, shapes and byte offsets follow from the list of tensors, so files are
// laid out before the first value is known. Tensors may be written in any order, from any thread, in row panels.
//
//   auto out = open_export(spec, ExportMode::create);            OUT.partial/ with headers and JSON files
//   (*out)->write_quant(i, row, panel);  (*out)->write_scalars(i, ...);  (*out)->write_plain(j, row, view);
//   (*out)->finish();                                           fsync, rename OUT.partial -> OUT
//
// The output has its final name only after finish() has returned.
//
// GGUF is one file: OUT.gguf.partial/model.gguf becomes OUT.gguf. Other files that the caller put into the work folder
// are moved next to it as OUT.gguf.NAME (OUT.gguf.nibble-report.html), and the manifest as OUT.gguf.nibble.json. Of the
// side files only the tokenizer and the chat template are kept, inside the file.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

struct ExportTensor {
    std::string name;  // canonical, "....weight" for matrices that are quantized
    std::vector<int64_t> shape;
    DType dtype = DType::bf16;  // dtype of plain tensors
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    bool input_scale = false;    // an input_scale is stored (write_scalars() writes it later)
    bool listed_module = false;  // is listed in exclude_modules / ignore although its name does not require it
    int64_t experts = 0;         // as in CheckpointTensor
};

struct ExportSpec {
    Dialect dialect = Dialect::modelopt;  // plain: a BF16 folder without quantization_config
    std::filesystem::path out;            // a folder, or a file for GGUF
    std::vector<ExportTensor> tensors;    // in the source's order
    KvFormat kv = KvFormat::none;
    Json config;  // config.json without quantization_config
    std::vector<Checkpoint::SideFile> side_files;
    int64_t max_shard_bytes = 5'000'000'000;
    std::string manifest;      // text of nibble.json: command, recipe, versions, arithmetic
    int64_t report_bytes = 0;  // bytes of files that the caller adds, for the check of free space
};

// Name of the weights file in the work folder of a GGUF export.
inline constexpr std::string_view gguf_work_file = "model.gguf";

// share: writes one file at a time (select()) of a work folder that another process created, without its lock. For
// processes that divide the files of one export.
enum class ExportMode : uint8_t { create, resume, share };

class Export {
public:
    virtual ~Export() = default;
    // Returns the folder that is being filled; it also holds the journal and the lock. finish() removes files named
    // ".nibble-*".
    virtual const std::filesystem::path& work_dir() const = 0;
    // Returns the path that Checkpoint::open can read before finish(): the work folder, or the GGUF file in it.
    virtual std::filesystem::path checkpoint_path() const { return work_dir(); }
    virtual int64_t total_bytes() const = 0;  // size of all files with weights

    // Write rows [row, row + view.rows). The view must match the declared tensor; F16 and F32 are written unchanged.
    // Errors of all writers: a mismatch with the declaration, an input or output error.
    virtual Status write_plain(size_t index, int64_t row, const MatrixView& view) = 0;
    virtual Status write_quant(size_t index, int64_t row, const QuantView& panel) = 0;
    // Writes the scalar scales of a quantized tensor; call once per tensor. tensor_scale is ignored by formats without
    // one; input_scale is required if it was declared.
    virtual Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) = 0;
    // Return the number of files with weights, the bytes of one, and the files that store a part of a tensor,
    // ascending.
    virtual int files() const { return 1; }
    virtual int64_t file_bytes(int /*file*/) const { return total_bytes(); }
    virtual std::vector<int> files_of(size_t /*index*/) const { return {0}; }

    // Return a checksum of the parts of this tensor in one file: written_checksum() of the data passed to this object
    // (each row once), checksum() of the data read back from the file. They are equal if the file holds what was
    // written, by whichever process.
    virtual uint64_t written_checksum(size_t index, int file) const = 0;
    virtual Result<uint64_t> checksum(size_t index, int file) const = 0;

    // Only with ExportMode::share. select() opens a file; writes to all other files are then dropped. finish_file()
    // syncs and closes it.
    virtual Status select(int file) = 0;
    virtual Status finish_file() = 0;

    // Removes the work folder. For a job that starts over instead of resuming.
    virtual void discard() {}

    // Calls fsync on everything, then renames the work folder (or the GGUF file in it) to its final name.
    virtual Status finish() = 0;
};

// Opens an export. Errors are found before anything is written: a tensor that the dialect cannot store, an existing
// output, too little disk space. With ExportMode::share the work folder must exist.
Result<std::unique_ptr<Export>> open_export(ExportSpec spec, ExportMode mode);

// Checks everything that needs no file: whether the dialect can store these tensors under these names, shapes and
// formats.
Status check_export(const ExportSpec& spec);

// Returns a message about what the written export will lack (a tokenizer in GGUF); empty: nothing.
std::string export_note(const ExportSpec& spec);

// The implementations of the functions above per dialect.
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::filesystem::path& folder, ScaleReading scales,
                                                       StackReading stacks);
Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& file, ScaleReading scales);
Result<std::unique_ptr<Export>> open_hf_export(ExportSpec spec, ExportMode mode);
Result<std::unique_ptr<Export>> open_gguf_export(ExportSpec spec, ExportMode mode);
Status check_hf_export(const ExportSpec& spec);
Status check_gguf_export(const ExportSpec& spec);

}  // namespace nibble
