// Writes Hugging Face folders: lays out the files from the list of tensors, then takes the values in any order.
#include "checkpoint/hf_layout.h"
#include "checkpoint/reciprocal.h"
#include "checkpoint/work_folder.h"
#include "formats/fp8.h"
#include "io/atomic_file.h"
#include "io/json_events.h"
#include "io/safetensors_writer.h"
#include "io/sharding.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t checksum_chunk = size_t{1} << 20;

// Where a stored tensor went.
struct Place {
    int file = 0;
    size_t tensor = 0;  // in that file's layout
};

class HfExport : public Export {
public:
    HfExport(ExportSpec spec, HfLayout layout, std::vector<Place> places, WorkFolder work,
             std::vector<SafetensorsFileWriter> files, bool resumed)
        : spec_(std::move(spec)),
          layout_(std::move(layout)),
          places_(std::move(places)),
          work_(std::move(work)),
          files_(std::move(files)),
          resumed_(resumed),
          rows_written_(spec_.tensors.size()),
          scalars_written_(spec_.tensors.size()) {}

    const fs::path& work_dir() const override { return work_.path(); }

    int64_t total_bytes() const override {
        int64_t n = 0;
        for (const SafetensorsFileWriter& f : files_) n += f.layout().file_bytes();
        return n;
    }

    Status write_plain(size_t index, int64_t row, const MatrixView& view) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, false));
        const int64_t rows = rows_of(*t), cols = cols_of(*t);
        if (view.dtype != t->dtype || view.cols != cols || row < 0 || view.rows < 0 || view.rows > rows - row)
            return fail("{}: rows [{}, {}) of {} x {} do not fit {} x {} {}", show_name(t->name), row, row + view.rows,
                        dtype_name(view.dtype), view.cols, rows, cols, dtype_name(t->dtype));
        NIBBLE_CHECK(
            put(layout_.first_of[index], row * view.row_bytes(), {view.data, static_cast<size_t>(view.bytes())}));
        rows_written_[index] += view.rows;
        return Ok{};
    }

    Status write_quant(size_t index, int64_t row, const QuantView& panel) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
        const int64_t rows = rows_of(*t), cols = cols_of(*t);
        if (panel.format != t->format || panel.cols != cols || row < 0 || panel.rows < 0 || panel.rows > rows - row)
            return fail("{}: rows [{}, {}) x {} of {} do not fit {} x {} of {}", show_name(t->name), row,
                        row + panel.rows, panel.cols, format_name(panel.format), rows, cols, format_name(t->format));
        if (t->format == Format::fp8_block128 &&
            (row % fp8_tile || (panel.rows % fp8_tile && row + panel.rows != rows)))
            return fail("{}: rows [{}, {}) cut a tile of {} rows", show_name(t->name), row, row + panel.rows, fp8_tile);
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const Format f = t->format;
            switch (layout_.tensors[s].part) {
                case Part::codes:
                    NIBBLE_CHECK(put(s, code_bytes(f, row, cols),
                                     std::as_bytes(std::span(panel.codes, size_t(code_bytes(f, panel.rows, cols))))));
                    break;
                case Part::block_scales:
                    NIBBLE_CHECK(put(
                        s, block_scale_bytes(f, row, cols),
                        std::as_bytes(std::span(panel.block_scales, size_t(block_scale_bytes(f, panel.rows, cols))))));
                    break;
                case Part::float_scales:
                    NIBBLE_CHECK(put(
                        s, 4 * float_scale_count(f, row, cols),
                        std::as_bytes(std::span(panel.float_scales, size_t(float_scale_count(f, panel.rows, cols))))));
                    break;
                case Part::tensor_scale:
                case Part::input_scale:
                    break;  // write_scalars
            }
        }
        rows_written_[index] += panel.rows;
        return Ok{};
    }

    Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
        if (input_scale.has_value() != t->input_scale)
            return fail("{}: {}", show_name(t->name),
                        t->input_scale ? "an input_scale was declared and is missing" : "no input_scale was declared");
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const StoredTensor& stored = layout_.tensors[s];
            if (stored.part != Part::tensor_scale && stored.part != Part::input_scale) continue;
            float x = stored.part == Part::tensor_scale ? tensor_scale : *input_scale;
            if (!is_finite(x) || !(x > 0.0f))
                return fail("{}: value {} is not a usable scale (finite and above zero)", show_name(stored.spec.name),
                            x);
            if (stored.divides) {
                const Divisor d = divisor_of(x);
                if (d.value == 0.0f) return fail("{}: {} has no finite reciprocal", show_name(stored.spec.name), x);
                x = d.value;
            }
            NIBBLE_CHECK(put(s, 0, std::as_bytes(std::span(&x, 1))));
        }
        scalars_written_[index] = true;
        return Ok{};
    }

    Result<uint64_t> checksum(size_t index) const override {
        if (index >= spec_.tensors.size()) return fail("no tensor number {}", index);
        std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
        if (!state || XXH3_64bits_reset(state.get()) != XXH_OK) return fail("cannot start a checksum");
        std::vector<std::byte> buffer;  // as large as needed: there are models with 100,000 tiny tensors
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const Place& p = places_[s];
            const SafetensorsFileWriter& file = files_[size_t(p.file)];
            const int64_t bytes = file.layout().bytes(p.tensor);
            if (buffer.size() < checksum_chunk) buffer.resize(std::min(checksum_chunk, size_t(bytes)));
            for (int64_t at = 0; at < bytes; at += int64_t(buffer.size())) {
                const std::span part = std::span(buffer).first(std::min(buffer.size(), size_t(bytes - at)));
                NIBBLE_CHECK(file.read_back(p.tensor, at, part));
                XXH3_64bits_update(state.get(), part.data(), part.size());
            }
        }
        return uint64_t{XXH3_64bits_digest(state.get())};
    }

    Status finish() override {
        if (!resumed_) NIBBLE_CHECK(check_complete());
        for (SafetensorsFileWriter& file : files_) NIBBLE_CHECK(file.finish());
        return work_.publish();
    }

private:
    Result<const ExportTensor*> tensor(size_t index, bool quantized) const {
        if (index >= spec_.tensors.size())
            return fail("no tensor number {}, there are {}", index, spec_.tensors.size());
        const ExportTensor& t = spec_.tensors[index];
        if ((t.format != Format::none) == quantized) return &t;
        return fail("{}: was declared {}", show_name(t.name), quantized ? "plain" : "quantized");
    }

    Status put(size_t stored, int64_t offset, Bytes bytes) {
        const Place& p = places_[stored];
        return files_[size_t(p.file)].write(p.tensor, offset, bytes);
    }

    // Forgotten rows would be zeros in the file. After a resume only the caller's journal knows what an earlier process
    // wrote.
    Status check_complete() const {
        for (size_t i = 0; i < spec_.tensors.size(); ++i) {
            const ExportTensor& t = spec_.tensors[i];
            if (cols_of(t) != 0 && rows_written_[i] < rows_of(t))
                return fail("{}: {} of {} rows were written", show_name(t.name), rows_written_[i].load(), rows_of(t));
            if (layout_.has_scalars(i) && !scalars_written_[i])
                return fail("{}: its scalar scales were not written", show_name(t.name));
        }
        return Ok{};
    }

    ExportSpec spec_;
    HfLayout layout_;
    std::vector<Place> places_;  // per stored tensor
    WorkFolder work_;
    std::vector<SafetensorsFileWriter> files_;
    bool resumed_;
    std::vector<std::atomic<int64_t>> rows_written_;
    std::vector<std::atomic<bool>> scalars_written_;
};

// Everything but the weights, synced.
Status write_documents(const ExportSpec& spec, const HfLayout& layout, const std::string& index,
                       const fs::path& folder) {
    for (const Checkpoint::SideFile& file : spec.side_files) {
        const fs::path to = folder / file.name;
        std::error_code error;
        fs::create_directories(to.parent_path(), error);
        if (error) return fail("{}: cannot create: {}", to.parent_path().string(), error.message());
        if (file.copy_from.empty()) {
            NIBBLE_CHECK(write_file_atomically(to, file.content));
            continue;
        }
        NIBBLE_TRY(const auto source, MappedFile::open(file.copy_from));
        NIBBLE_CHECK(write_file_atomically(to, source.bytes()));
    }
    for (const auto& [name, text] : layout.documents) NIBBLE_CHECK(write_file_atomically(folder / name, text));
    if (!index.empty()) NIBBLE_CHECK(write_file_atomically(folder / shard_index_name, index));
    if (!spec.manifest.empty()) NIBBLE_CHECK(write_file_atomically(folder / manifest_name, spec.manifest));
    return Ok{};
}

int64_t side_file_bytes(const ExportSpec& spec) {
    int64_t n = 0;
    for (const Checkpoint::SideFile& file : spec.side_files) {
        std::error_code error;
        const auto size = file.copy_from.empty() ? file.content.size() : fs::file_size(file.copy_from, error);
        if (!error) n += int64_t(size);
    }
    return n;
}

}  // namespace

Result<std::unique_ptr<Export>> open_hf_export(ExportSpec spec, ExportMode mode) {
    NIBBLE_TRY(auto layout, make_hf_layout(spec));

    std::vector<ShardItem> items;
    for (const StoredTensor& t : layout.tensors) items.push_back({t.spec.name, t.bytes});
    NIBBLE_TRY(const auto plan, plan_shards(items, spec.max_shard_bytes));
    std::string index;
    if (plan.needs_index()) {
        NIBBLE_TRY(index, shard_index_json(items, plan));
    }
    std::vector<Place> places;
    std::vector<std::vector<TensorSpec>> specs(plan.files.size());
    for (size_t i = 0; i < layout.tensors.size(); ++i) {
        std::vector<TensorSpec>& file = specs[size_t(plan.file_of[i])];
        places.push_back({plan.file_of[i], file.size()});
        file.push_back(layout.tensors[i].spec);
    }
    std::vector<SafetensorsLayout> layouts;
    int64_t bytes = side_file_bytes(spec);
    for (auto& s : specs) {
        NIBBLE_TRY(auto made, SafetensorsLayout::make(std::move(s)));
        const auto sum = checked_add(bytes, made.file_bytes());
        if (!sum) return fail("{}: the size of the output passes 63 bits", spec.out.string());
        bytes = *sum;
        layouts.push_back(std::move(made));
    }

    NIBBLE_TRY(auto work, WorkFolder::open(spec.out, mode, bytes));
    std::vector<SafetensorsFileWriter> files;
    const auto fill = [&]() -> Status {
        for (size_t i = 0; i < layouts.size(); ++i) {
            const fs::path path = work.path() / plan.files[i];
            NIBBLE_TRY(auto file, mode == ExportMode::create
                                      ? SafetensorsFileWriter::create(path, std::move(layouts[i]))
                                      : SafetensorsFileWriter::reopen(path, std::move(layouts[i])));
            files.push_back(std::move(file));
        }
        return write_documents(spec, layout, index, work.path());
    };
    if (Status filled = fill(); !filled.ok()) {
        if (mode == ExportMode::create) work.discard();
        return std::move(filled).error();
    }
    return std::unique_ptr<Export>(std::make_unique<HfExport>(std::move(spec), std::move(layout), std::move(places),
                                                              std::move(work), std::move(files),
                                                              mode == ExportMode::resume));
}

}  // namespace nibble
