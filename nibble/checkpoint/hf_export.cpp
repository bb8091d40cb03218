// Writes Hugging Face folders: lays out the files from the list of tensors, then writes values in any order.
#include "checkpoint/export_ledger.h"
#include "checkpoint/hf_layout.h"
#include "checkpoint/reciprocal.h"
#include "checkpoint/stacked_experts.h"
#include "checkpoint/work_folder.h"
#include "formats/fp8.h"
#include "io/atomic_file.h"
#include "io/json_events.h"
#include "io/safetensors_writer.h"
#include "io/sharding.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The position of a stored tensor.
struct Place {
    int file = 0;
    size_t tensor = 0;  // index in that file's layout
};

// A file with weights: its layout, and its writer while the file is open.
struct WeightsFile {
    fs::path path;
    SafetensorsLayout layout;
    std::optional<SafetensorsFileWriter> writer;
};

class HfExport : public Export {
public:
    HfExport(ExportSpec spec, HfLayout layout, std::vector<Place> places, WorkFolder work,
             std::vector<WeightsFile> files, ExportMode mode)
        : spec_(std::move(spec)),
          layout_(std::move(layout)),
          places_(std::move(places)),
          work_(std::move(work)),
          files_(std::move(files)),
          mode_(mode),
          ledger_(spec_.tensors, layout_.tensors.size()) {}

    const fs::path& work_dir() const override { return work_.path(); }

    int64_t total_bytes() const override {
        int64_t n = 0;
        for (const WeightsFile& f : files_) n += f.layout.file_bytes();
        return n;
    }
    int files() const override { return static_cast<int>(files_.size()); }
    int64_t file_bytes(int file) const override { return files_[size_t(file)].layout.file_bytes(); }

    std::vector<int> files_of(size_t index) const override {
        std::vector<int> files;
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) files.push_back(places_[s].file);
        std::ranges::sort(files);
        files.erase(std::unique(files.begin(), files.end()), files.end());
        return files;
    }

    Status write_plain(size_t index, int64_t row, const MatrixView& view) override {
        NIBBLE_CHECK(ledger_.plain(index, row, view));
        NIBBLE_CHECK(put(index, layout_.first_of[index], row * view.row_bytes(),
                         {view.data, static_cast<size_t>(view.bytes())}));
        ledger_.wrote_rows(index, view.rows);
        return Ok{};
    }

    Status write_quant(size_t index, int64_t row, const QuantView& panel) override {
        NIBBLE_TRY(const ExportTensor* t, ledger_.quantized(index, row, panel));
        const int64_t rows = rows_of(*t), cols = panel.cols;
        if (t->format == Format::fp8_block128 &&
            (row % fp8_tile || (panel.rows % fp8_tile && row + panel.rows != rows)))
            return fail("{}: rows [{}, {}) cut a tile of {} rows", show_name(t->name), row, row + panel.rows, fp8_tile);
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const Format f = t->format;
            switch (layout_.tensors[s].part) {
                case Part::codes:
                    NIBBLE_CHECK(put(index, s, code_bytes(f, row, cols),
                                     std::as_bytes(std::span(panel.codes, size_t(code_bytes(f, panel.rows, cols))))));
                    break;
                case Part::block_scales:
                    NIBBLE_CHECK(put(
                        index, s, block_scale_bytes(f, row, cols),
                        std::as_bytes(std::span(panel.block_scales, size_t(block_scale_bytes(f, panel.rows, cols))))));
                    break;
                case Part::float_scales:
                    NIBBLE_CHECK(
                        put_float_scales(index, s, float_scale_count(f, row, cols),
                                         {panel.float_scales, size_t(float_scale_count(f, panel.rows, cols))}));
                    break;
                case Part::tensor_scale:
                case Part::input_scale:
                case Part::shape:
                    break;  // written by write_scalars()
            }
        }
        ledger_.wrote_rows(index, panel.rows);
        return Ok{};
    }

    Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) override {
        NIBBLE_CHECK(ledger_.scalars(index, input_scale));
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const StoredTensor& stored = layout_.tensors[s];
            if (stored.part == Part::shape) {
                const ExportTensor& t = spec_.tensors[index];
                NIBBLE_CHECK(put(index, s, 0, std::as_bytes(std::span<const int64_t>(t.shape))));
            }
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
            NIBBLE_CHECK(put(index, s, 0, std::as_bytes(std::span(&x, 1))));
        }
        ledger_.wrote_scalars(index);
        return Ok{};
    }

    uint64_t written_checksum(size_t index, int file) const override {
        uint64_t sum = 0;
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s)
            if (places_[s].file == file) sum += ledger_.checksum(s);
        return sum;
    }

    Result<uint64_t> checksum(size_t index, int file) const override {
        if (index >= spec_.tensors.size()) return fail("no tensor number {}", index);
        const WeightsFile& weights = files_[size_t(file)];
        if (!weights.writer) return fail("{}: is not open", weights.path.string());
        uint64_t sum = 0;
        for (size_t s = layout_.first_of[index]; s < layout_.first_of[index + 1]; ++s) {
            const Place& p = places_[s];
            if (p.file != file) continue;
            const auto read = [&](int64_t at, std::span<std::byte> part) -> Status {
                if (!is_turned(index, s)) return weights.writer->read_back(p.tensor, at, part);
                return read_turned(index, s, at, part);
            };
            NIBBLE_TRY(const uint64_t part_sum, read_back_checksum(weights.layout.bytes(p.tensor), row_bytes(index, s),
                                                                   int(s - layout_.first_of[index]), read));
            sum += part_sum;
        }
        return sum;
    }

    void discard() override { work_.discard(); }

    Status select(int file) override {
        if (mode_ != ExportMode::share) return fail("{}: all its files are open", work_dir().string());
        selected_ = static_cast<size_t>(file);
        for (WeightsFile& f : files_) f.writer.reset();
        for (size_t s = 0; s < places_.size(); ++s)
            if (places_[s].file == file) ledger_.forget(s);
        WeightsFile& chosen = files_[selected_];
        NIBBLE_TRY(auto writer, SafetensorsFileWriter::reopen(chosen.path, chosen.layout));
        chosen.writer.emplace(std::move(writer));
        return Ok{};
    }

    Status finish_file() override {
        if (selected_ >= files_.size() || !files_[selected_].writer)
            return fail("{}: no file of it is open", work_dir().string());
        NIBBLE_CHECK(files_[selected_].writer->finish());
        files_[selected_].writer.reset();
        return Ok{};
    }

    Status finish() override {
        if (mode_ == ExportMode::share) return fail("{}: other processes write it, too", work_dir().string());
        if (mode_ == ExportMode::create)
            NIBBLE_CHECK(ledger_.check_complete([&](size_t i) { return layout_.has_scalars(i); }));
        for (WeightsFile& file : files_) NIBBLE_CHECK(file.writer->finish());
        return work_.publish();
    }

private:
    // Returns the size of a row of a stored part, as rows_checksum() counts rows: a row of the matrix, or of its tiles.
    int64_t row_bytes(size_t index, size_t stored) const {
        const ExportTensor& t = spec_.tensors[index];
        const int64_t cols = cols_of(t);
        if (t.format == Format::none) return cols * dtype_bytes(t.dtype);
        switch (layout_.tensors[stored].part) {
            case Part::codes:
                return code_bytes(t.format, 1, cols);
            case Part::block_scales:
                return block_scale_bytes(t.format, 1, cols);
            case Part::float_scales:
                return format_layout(t.format).scale_bytes * float_scale_count(t.format, 1, cols);
            case Part::shape:
                return 2 * sizeof(int64_t);
            case Part::tensor_scale:
            case Part::input_scale:
                break;
        }
        return sizeof(float);
    }

    // Writes scales from number `first` on, as BF16 if the part is stored so. Error: a scale that is not a BF16 number.
    Status put_float_scales(size_t index, size_t stored, int64_t first, std::span<const float> scales) {
        if (layout_.tensors[stored].spec.dtype == DType::f32)
            return put(index, stored, 4 * first, std::as_bytes(scales));
        std::vector<uint16_t> narrow(scales.size());
        for (size_t i = 0; i < scales.size(); ++i) {
            narrow[i] = bf16_from_float(scales[i]);
            if (bf16_to_float(narrow[i]) != scales[i])
                return fail("{}: scale {} is {}: not a BF16 number", show_name(layout_.tensors[stored].spec.name),
                            first + static_cast<int64_t>(i), scales[i]);
        }
        return put(index, stored, 2 * first, std::as_bytes(std::span<const uint16_t>(narrow)));
    }

    Status put(size_t index, size_t stored, int64_t offset, Bytes bytes) {
        const Place& p = places_[stored];
        const auto& writer = files_[size_t(p.file)].writer;
        if (!writer) return Ok{};  // another process writes this file
        ledger_.wrote(stored,
                      rows_checksum(bytes, row_bytes(index, stored), offset, int(stored - layout_.first_of[index])));
        if (is_turned(index, stored)) return write_turned(index, stored, offset, bytes);
        return writer->write(p.tensor, offset, bytes);
    }

    // Returns whether the part belongs to a stack of experts, which is stored as [experts, inputs, outputs].
    bool is_turned(size_t index, size_t stored) const {
        return spec_.tensors[index].experts > 0 && layout_.tensors[stored].spec.shape.size() == 3;
    }

    // Calls visit(offset in the stored part, element of `bytes`, elements) for the runs of outputs in the file that
    // hold the given whole rows; element `at + i * columns` of the rows is element i of a run.
    template <class Visit>
    Status for_each_run(size_t index, size_t stored, int64_t offset, int64_t size, Visit visit) const {
        const std::vector<int64_t>& shape = layout_.tensors[stored].spec.shape;
        const int64_t columns = shape[1], outputs = shape[2], row = row_bytes(index, stored), element = row / columns;
        Status status = Ok{};
        for_each_expert(outputs, offset / row, size / row, [&](int64_t e, int64_t first, int64_t count, int64_t done) {
            for (int64_t c = 0; c < columns && status.ok(); ++c)
                status =
                    visit(((e * columns + c) * outputs + first) * element, done * columns + c, count, element, columns);
        });
        return status;
    }

    Status write_turned(size_t index, size_t stored, int64_t offset, Bytes rows) const {
        const Place& p = places_[stored];
        std::vector<std::byte> run;
        return for_each_run(index, stored, offset, std::ssize(rows),
                            [&](int64_t to, int64_t at, int64_t count, int64_t element, int64_t columns) {
                                run.resize(static_cast<size_t>(count * element));
                                for (int64_t i = 0; i < count; ++i)
                                    std::memcpy(run.data() + i * element, rows.data() + (at + i * columns) * element,
                                                static_cast<size_t>(element));
                                return files_[size_t(p.file)].writer->write(p.tensor, to, run);
                            });
    }

    Status read_turned(size_t index, size_t stored, int64_t offset, std::span<std::byte> rows) const {
        const Place& p = places_[stored];
        std::vector<std::byte> run;
        return for_each_run(index, stored, offset, std::ssize(rows),
                            [&](int64_t from, int64_t at, int64_t count, int64_t element, int64_t columns) -> Status {
                                run.resize(static_cast<size_t>(count * element));
                                NIBBLE_CHECK(files_[size_t(p.file)].writer->read_back(p.tensor, from, run));
                                for (int64_t i = 0; i < count; ++i)
                                    std::memcpy(rows.data() + (at + i * columns) * element, run.data() + i * element,
                                                static_cast<size_t>(element));
                                return Ok{};
                            });
    }

    ExportSpec spec_;
    HfLayout layout_;
    std::vector<Place> places_;  // one per stored tensor
    WorkFolder work_;
    std::vector<WeightsFile> files_;
    ExportMode mode_;
    size_t selected_ = SIZE_MAX;
    ExportLedger ledger_;
};

// Writes everything except the weights, and syncs it.
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

// Returns the bytes of all files apart from those with weights.
int64_t other_bytes(const ExportSpec& spec, const HfLayout& layout, std::string_view index) {
    int64_t n = spec.report_bytes + std::ssize(spec.manifest) + std::ssize(index);
    for (const auto& [name, text] : layout.documents) n += std::ssize(text);
    for (const Checkpoint::SideFile& file : spec.side_files) {
        std::error_code error;
        const auto size = file.copy_from.empty() ? file.content.size() : fs::file_size(file.copy_from, error);
        if (!error) n += int64_t(size);
    }
    return n;
}

}  // namespace

Status check_hf_export(const ExportSpec& spec) {
    NIBBLE_CHECK(make_hf_layout(spec));
    return Ok{};
}

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
    std::vector<WeightsFile> files;
    int64_t bytes = other_bytes(spec, layout, index);
    for (auto& s : specs) {
        NIBBLE_TRY(auto made, SafetensorsLayout::make(std::move(s)));
        const auto sum = checked_add(bytes, made.file_bytes());
        if (!sum) return fail("{}: the size of the output passes 63 bits", spec.out.string());
        bytes = *sum;
        files.push_back({plan.files[files.size()], std::move(made), {}});
    }

    NIBBLE_TRY(auto work,
               mode == ExportMode::share ? WorkFolder::share(spec.out) : WorkFolder::open(spec.out, mode, bytes));
    for (WeightsFile& file : files) file.path = work.path() / file.path;
    const auto make = [&](ExportMode how) {
        return std::unique_ptr<Export>(std::make_unique<HfExport>(std::move(spec), std::move(layout), std::move(places),
                                                                  std::move(work), std::move(files), how));
    };
    if (mode == ExportMode::share) return make(mode);
    const auto fill = [&]() -> Status {
        for (WeightsFile& file : files) file.writer.reset();
        for (WeightsFile& file : files) {
            auto writer = work.fresh() ? SafetensorsFileWriter::create(file.path, file.layout)
                                       : SafetensorsFileWriter::reopen(file.path, file.layout);
            if (!writer.ok()) return std::move(writer).error();
            file.writer.emplace(*std::move(writer));
        }
        return Ok{};
    };
    const auto documents = [&](Status made) -> Status {
        if (!made.ok()) return made;
        return write_documents(spec, layout, index, work.path());
    };
    Status filled = fill();
    if (!filled.ok() && !work.fresh()) {
        NIBBLE_TRY(const bool again, work.start_over(bytes));
        if (!again) return work.another_job(filled.error());
        filled = fill();
    }
    filled = documents(std::move(filled));
    if (!filled.ok()) {
        if (work.fresh()) work.discard();
        return std::move(filled).error();
    }
    return make(work.fresh() ? ExportMode::create : ExportMode::resume);
}

}  // namespace nibble
