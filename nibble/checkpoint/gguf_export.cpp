// Writes GGUF files: first the header and all offsets, then the values in any order.
#include "architecture/canonical_config.h"
#include "architecture/stored_names.h"
#include "checkpoint/decode.h"
#include "checkpoint/export_ledger.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/hf_layout.h"
#include "checkpoint/work_folder.h"
#include "formats/fp8.h"
#include "formats/ggml_blocks.h"
#include "io/atomic_file.h"
#include "io/json_events.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns the rows of a plain matrix as FP32, after the transformation that GGUF requires.
std::vector<std::byte> rows_as_f32(const MatrixView& view, GgufTransform transform) {
    const int64_t n = view.rows * view.cols;
    Matrix widened;
    const MatrixView values = plain_as(view, DType::f32, widened);
    std::vector<std::byte> out(size_t(n) * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
        float x = 0;
        std::memcpy(&x, values.data + 4 * i, 4);
        if (transform == GgufTransform::norm_shift) x += 1.0f;
        if (transform == GgufTransform::a_log || transform == GgufTransform::a_log_flat)
            x = static_cast<float>(-std::exp(static_cast<double>(x)));
        std::memcpy(&out[size_t(i) * sizeof(float)], &x, sizeof(float));
    }
    return out;
}

// Packs one row. Error: a block scale that ggml's decoders read as another value than the format defines.
Status pack_row(const QuantView& row, uint8_t* out) {
    const int64_t blocks = row.cols / (row.format == Format::nvfp4 ? 64 : 32);
    for (int64_t b = 0; b < blocks; ++b) {
        if (row.format == Format::mxfp4) {
            if (row.block_scales[b] == 255) return fail("block scale 255, which is not a number in E8M0");
            pack_mxfp4(row.codes + 16 * b, row.block_scales[b], out + 17 * b);
            continue;
        }
        for (int s = 0; s < 4; ++s)
            if (const uint8_t scale = row.block_scales[4 * b + s]; scale >= e4m3_nan_code)
                return fail("block scale {:#x}: GGUF needs scales that are numbers and not negative", scale);
        pack_nvfp4(row.codes + 32 * b, row.block_scales + 4 * b, out + 36 * b);
    }
    return Ok{};
}

class GgufExport : public Export {
public:
    GgufExport(ExportSpec spec, GgufExportLayout layout, WorkFolder work, GgufLayout file_layout,
               std::optional<GgufFileWriter> file, ExportMode mode)
        : spec_(std::move(spec)),
          layout_(std::move(layout)),
          work_(std::move(work)),
          file_layout_(std::move(file_layout)),
          file_(std::move(file)),
          mode_(mode),
          ledger_(spec_.tensors, spec_.tensors.size()) {}

    const fs::path& work_dir() const override { return work_.path(); }
    fs::path checkpoint_path() const override { return work_.path() / gguf_work_file; }
    int64_t total_bytes() const override { return file_layout_.file_bytes(); }

    Status write_plain(size_t index, int64_t row, const MatrixView& view) override {
        NIBBLE_CHECK(ledger_.plain(index, row, view));
        const GgufPlace& place = layout_.places[index];
        const bool as_stored =
            place.type != GgmlType::f32 ||
            (view.dtype == DType::f32 && place.transform != GgufTransform::norm_shift &&
             place.transform != GgufTransform::a_log && place.transform != GgufTransform::a_log_flat);
        std::vector<std::byte> converted;
        Bytes bytes{view.data, static_cast<size_t>(view.bytes())};
        if (!as_stored) {
            converted = rows_as_f32(view, place.transform);
            bytes = converted;
        }
        return put(index, row, view.rows, bytes);
    }

    Status write_quant(size_t index, int64_t row, const QuantView& panel) override {
        NIBBLE_TRY(const ExportTensor* t, ledger_.quantized(index, row, panel));
        const int64_t row_bytes = layout_.places[index].row_bytes;
        std::vector<uint8_t> blocks(size_t(panel.rows * row_bytes));
        for (int64_t r = 0; r < panel.rows; ++r)
            if (const Status packed = pack_row(panel.panel(r, 1), blocks.data() + r * row_bytes); !packed.ok())
                return fail("{}: row {}: {}", show_name(t->name), row + r, packed.error().message());
        return put(index, row, panel.rows, std::as_bytes(std::span(blocks)));
    }

    Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) override {
        NIBBLE_TRY(const ExportTensor* t, ledger_.scalars(index, input_scale));
        const GgufPlace& place = layout_.places[index];
        const auto write = [&](Part part, const std::optional<size_t>& at, float value,
                               std::string_view what) -> Status {
            if (!at) return Ok{};
            if (!std::isfinite(value) || value <= 0)
                return fail("{}: {} {} must be finite and positive", show_name(t->name), what, value);
            const Bytes bytes = std::as_bytes(std::span(&value, 1));
            ledger_.wrote(index, rows_checksum(bytes, scalar_bytes, 0, part));
            return file_->write(*at, place.element * scalar_bytes, bytes);
        };
        NIBBLE_CHECK(write(scale, place.scale, tensor_scale, "tensor scale"));
        NIBBLE_CHECK(write(Part::input_scale, place.input_scale, input_scale.value_or(0), "input scale"));
        ledger_.wrote_scalars(index);
        return Ok{};
    }

    uint64_t written_checksum(size_t index, int /*file*/) const override { return ledger_.checksum(index); }

    Result<uint64_t> checksum(size_t index, int /*file*/) const override {
        if (index >= spec_.tensors.size()) return fail("no tensor number {}", index);
        const auto sum_of = [&](Part part, size_t at, int64_t begin, int64_t bytes, int64_t row_bytes) {
            return read_back_checksum(bytes, row_bytes, part, [&](int64_t offset, std::span<std::byte> to) {
                return file_->read_back(at, begin + offset, to);
            });
        };
        const GgufPlace& place = layout_.places[index];
        NIBBLE_TRY(uint64_t sum, sum_of(blocks, place.tensor, place.offset,
                                        rows_of(spec_.tensors[index]) * place.row_bytes, place.row_bytes));
        for (const auto& [part, scalar] : {std::pair(scale, place.scale), std::pair(input_scale, place.input_scale)}) {
            if (!scalar) continue;
            NIBBLE_TRY(const uint64_t scalar_sum,
                       sum_of(part, *scalar, place.element * scalar_bytes, scalar_bytes, scalar_bytes));
            sum += scalar_sum;
        }
        return sum;
    }

    void discard() override { work_.discard(); }

    Status select(int /*file*/) override {
        if (mode_ != ExportMode::share) return fail("{}: its file is open", work_dir().string());
        for (size_t i = 0; i < spec_.tensors.size(); ++i) ledger_.forget(i);
        NIBBLE_TRY(auto file, GgufFileWriter::reopen(checkpoint_path(), file_layout_));
        file_.emplace(std::move(file));
        return Ok{};
    }

    Status finish_file() override {
        if (!file_) return fail("{}: is not open", checkpoint_path().string());
        NIBBLE_CHECK(file_->finish());
        file_.reset();
        return Ok{};
    }

    Status finish() override {
        if (mode_ == ExportMode::share) return fail("{}: other processes write it, too", work_dir().string());
        if (mode_ == ExportMode::create)
            NIBBLE_CHECK(ledger_.check_complete([&](size_t i) { return layout_.places[i].scale.has_value(); }));
        NIBBLE_CHECK(file_->finish());
        NIBBLE_CHECK(publish_documents());
        return work_.publish_file(std::string(gguf_work_file));
    }

private:
    enum Part : int { blocks, scale, input_scale };
    static constexpr int64_t scalar_bytes = sizeof(float);

    // Writes rows at their position in the file.
    Status put_at(size_t index, int64_t row, Bytes bytes) {
        const GgufPlace& place = layout_.places[index];
        const int64_t offset = row * place.row_bytes;
        ledger_.wrote(index, rows_checksum(bytes, place.row_bytes, offset, blocks));
        return file_->write(place.tensor, place.offset + offset, bytes);
    }

    // Returns rows with the columns of value heads in llama.cpp's order. The columns of a head are whole blocks, so
    // their bytes are adjacent.
    static std::vector<std::byte> move_columns(const GgufPlace& place, Bytes rows) {
        const GgufValueHeads& heads = place.value_columns;
        const int64_t bytes = place.row_bytes / heads.heads();  // bytes per head
        std::vector<std::byte> moved(rows.size());
        for (int64_t row = 0; row < std::ssize(rows); row += place.row_bytes)
            for (int64_t h = 0; h < heads.heads(); ++h)
                std::ranges::copy(rows.subspan(size_t(row + h * bytes), size_t(bytes)),
                                  moved.begin() + row + heads.place(h * heads.size) / heads.size * bytes);
        return moved;
    }

    // Writes `count` rows in Hugging Face order, each to its place in llama.cpp's order of value heads.
    Status put_value_rows(size_t index, int64_t row, int64_t count, Bytes bytes) {
        const GgufPlace& place = layout_.places[index];
        const GgufValueHeads& heads = place.value_rows;
        for (int64_t r = 0; r < count;) {  // rows before the heads, and rows of one head, stay adjacent
            const int64_t at = row + r;
            const int64_t left = at < heads.first ? heads.first - at : heads.size - (at - heads.first) % heads.size;
            const int64_t n = std::min(count - r, left);
            NIBBLE_CHECK(put_at(index, heads.place(at),
                                bytes.subspan(size_t(r * place.row_bytes), size_t(n * place.row_bytes))));
            r += n;
        }
        return Ok{};
    }

    // Writes `count` rows in Hugging Face order. Whole heads keep their position, so a panel of whole heads is one
    // write; otherwise rows are written one by one.
    Status put(size_t index, int64_t row, int64_t count, Bytes bytes) {
        const GgufPlace& place = layout_.places[index];
        const int64_t row_bytes = place.row_bytes, head = place.head_dim;
        std::vector<std::byte> moved_columns;
        if (place.value_columns.size > 0) {
            moved_columns = move_columns(place, bytes);
            bytes = moved_columns;
        }
        if (place.value_rows.size > 0) {
            NIBBLE_CHECK(put_value_rows(index, row, count, bytes));
        } else if (head == 0) {
            NIBBLE_CHECK(put_at(index, row, bytes));
        } else if (row % head == 0 && count % head == 0) {
            std::vector<std::byte> moved(bytes.size());
            for (int64_t r = 0; r < count; ++r)
                std::ranges::copy(bytes.subspan(size_t(r * row_bytes), size_t(row_bytes)),
                                  moved.begin() + gguf_row_of_hf_row(r, head) * row_bytes);
            NIBBLE_CHECK(put_at(index, row, moved));
        } else {
            for (int64_t r = 0; r < count; ++r)
                NIBBLE_CHECK(put_at(index, gguf_row_of_hf_row(row + r, head),
                                    bytes.subspan(size_t(r * row_bytes), size_t(row_bytes))));
        }
        ledger_.wrote_rows(index, count);
        return Ok{};
    }

    // Moves reports and the manifest next to the output, before the weights get their final name.
    Status publish_documents() const {
        const auto sibling = [&](const std::string& name) {
            fs::path to = spec_.out.lexically_normal();
            to += "." + name;
            return to;
        };
        if (!spec_.manifest.empty()) NIBBLE_CHECK(write_file_atomically(work_.path() / "nibble.json", spec_.manifest));
        std::vector<std::string> names;
        std::error_code error;
        for (fs::directory_iterator it(work_.path(), error), end; !error && it != end; it.increment(error))
            if (const std::string name = it->path().filename().string();
                name != gguf_work_file && !name.starts_with(job_file_prefix))
                names.push_back(name);
        if (error) return fail("{}: cannot list: {}", work_.path().string(), error.message());
        for (const std::string& name : names) NIBBLE_CHECK(rename_durably(work_.path() / name, sibling(name)));
        return Ok{};
    }

    ExportSpec spec_;
    GgufExportLayout layout_;
    WorkFolder work_;
    GgufLayout file_layout_;
    std::optional<GgufFileWriter> file_;
    ExportMode mode_;
    ExportLedger ledger_;
};

// Returns the number of rows of the embedding; llama.cpp's vocabulary must have as many tokens.
Result<int64_t> vocabulary_of(const GgufExportLayout& layout) {
    for (const GgufTensorSpec& t : layout.tensors)
        if (t.name == "token_embd.weight" && t.shape.size() == 2) return t.shape[0];
    return fail("the model has no embedding matrix, so it cannot be written as GGUF");
}

// The parts of the file that follow from the configuration and the list of tensors.
struct GgufPlan {
    GgufExportLayout layout;
    GgufLayout file;
    std::vector<float> divisors;  // data of the last tensor, rope_freqs.weight, if it exists
};

Result<GgufPlan> plan_gguf_file(ExportSpec spec) {
    NIBBLE_TRY(const Json canonical, canonical_config(spec.config));
    NIBBLE_TRY(const Family* family, gguf_family_of(canonical));
    NIBBLE_TRY(ModelConfig model, model_config(spec.config));
    std::vector<std::string_view> names;
    for (const auto& tensor : spec.tensors) names.push_back(tensor.name);
    use_stored_names(model, StoredNames(std::move(names)));
    NIBBLE_TRY(const GgufArchitecture architecture, gguf_architecture_of(*family, model));
    spec.config = canonical;
    NIBBLE_TRY(auto layout, make_gguf_export_layout(spec, model, architecture));
    NIBBLE_TRY(const int64_t vocabulary, vocabulary_of(layout));
    GgufHeader header;
    NIBBLE_CHECK(add_gguf_hyper_parameters(spec, model, architecture, layout, header));
    NIBBLE_CHECK(add_gguf_tokenizer(spec, vocabulary, header));
    NIBBLE_TRY(std::vector<float> divisors, gguf_rope_divisors(spec));
    if (!divisors.empty())
        layout.tensors.push_back({"rope_freqs.weight", GgmlType::f32, {static_cast<int64_t>(divisors.size())}});
    NIBBLE_TRY(auto file, GgufLayout::make(header.metadata, layout.tensors));
    return GgufPlan{std::move(layout), std::move(file), std::move(divisors)};
}

}  // namespace

Status check_gguf_export(const ExportSpec& spec) {
    NIBBLE_CHECK(plan_gguf_file(spec));
    return Ok{};
}

Result<std::unique_ptr<Export>> open_gguf_export(ExportSpec spec, ExportMode mode) {
    std::error_code error;
    if (spec.out.extension() != ".gguf") return fail("{}: the name of a GGUF file ends in .gguf", spec.out.string());
    if (fs::is_directory(spec.out, error)) return fail("{}: is a folder; choose another output", spec.out.string());

    NIBBLE_TRY(auto plan, plan_gguf_file(spec));
    GgufExportLayout& layout = plan.layout;
    const GgufLayout& file_layout = plan.file;
    const std::vector<float>& divisors = plan.divisors;
    const int64_t bytes = file_layout.file_bytes() + std::ssize(spec.manifest) + spec.report_bytes;
    NIBBLE_TRY(auto work,
               mode == ExportMode::share ? WorkFolder::share(spec.out) : WorkFolder::open(spec.out, mode, bytes));
    const auto make = [&](std::optional<GgufFileWriter> file, ExportMode how) {
        return std::unique_ptr<Export>(std::make_unique<GgufExport>(std::move(spec), std::move(layout), std::move(work),
                                                                    file_layout, std::move(file), how));
    };
    if (mode == ExportMode::share) return make({}, mode);
    const fs::path path = work.path() / gguf_work_file;
    const auto fill = [&]() -> Result<GgufFileWriter> {
        auto file =
            work.fresh() ? GgufFileWriter::create(path, file_layout) : GgufFileWriter::reopen(path, file_layout);
        if (file.ok() && !divisors.empty())
            NIBBLE_CHECK(file->write(layout.tensors.size() - 1, 0, std::as_bytes(std::span(divisors))));
        return file;
    };
    auto file = fill();
    if (!file.ok() && !work.fresh()) {
        NIBBLE_TRY(const bool again, work.start_over(bytes));
        if (!again) return work.another_job(file.error());
        file = fill();
    }
    if (!file.ok()) {
        if (work.fresh()) work.discard();
        return std::move(file).error();
    }
    const ExportMode how = work.fresh() ? ExportMode::create : ExportMode::resume;
    return make(*std::move(file), how);
}

}  // namespace nibble
