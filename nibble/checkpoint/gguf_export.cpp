// Writes GGUF files: the header and every offset first, then the values in any order.
#include "checkpoint/gguf_header.h"
#include "checkpoint/hf_layout.h"
#include "checkpoint/work_folder.h"
#include "formats/fp8.h"
#include "formats/ggml_blocks.h"
#include "io/atomic_file.h"
#include "io/json_events.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t checksum_chunk = size_t{1} << 20;

// Rows of a plain matrix as FP32, with what GGUF stores instead of the weight itself.
std::vector<std::byte> rows_as_f32(const MatrixView& view, GgufTransform transform) {
    const int64_t n = view.rows * view.cols;
    std::vector<std::byte> out(size_t(n) * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
        float x = 0;
        uint16_t half = 0;
        if (view.dtype == DType::f32) {
            std::memcpy(&x, view.data + 4 * i, 4);
        } else {
            std::memcpy(&half, view.data + 2 * i, 2);
            x = view.dtype == DType::f16 ? fp16_to_float(half) : bf16_to_float(half);
        }
        if (transform == GgufTransform::norm_shift) x += 1.0f;
        if (transform == GgufTransform::a_log) x = static_cast<float>(-std::exp(static_cast<double>(x)));
        std::memcpy(&out[size_t(i) * sizeof(float)], &x, sizeof(float));
    }
    return out;
}

// Error: a block scale that ggml's decoders do not read as the format does.
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
    GgufExport(ExportSpec spec, GgufExportLayout layout, WorkFolder work, GgufFileWriter file, bool resumed)
        : spec_(std::move(spec)),
          layout_(std::move(layout)),
          work_(std::move(work)),
          file_(std::move(file)),
          resumed_(resumed),
          rows_written_(spec_.tensors.size()),
          scalars_written_(spec_.tensors.size()) {}

    const fs::path& work_dir() const override { return work_.path(); }
    fs::path checkpoint_path() const override { return work_.path() / gguf_work_file; }
    int64_t total_bytes() const override { return file_.layout().file_bytes(); }

    Status write_plain(size_t index, int64_t row, const MatrixView& view) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, false));
        if (view.dtype != t->dtype || view.cols != cols_of(*t) || !holds(*t, row, view.rows))
            return fail("{}: rows [{}, {}) of {} x {} do not fit {} x {} {}", show_name(t->name), row, row + view.rows,
                        dtype_name(view.dtype), view.cols, rows_of(*t), cols_of(*t), dtype_name(t->dtype));
        const GgufPlace& place = layout_.places[index];
        const bool as_stored =
            place.type != GgmlType::f32 || (view.dtype == DType::f32 && place.transform != GgufTransform::norm_shift &&
                                            place.transform != GgufTransform::a_log);
        std::vector<std::byte> converted;
        Bytes bytes{view.data, static_cast<size_t>(view.bytes())};
        if (!as_stored) {
            converted = rows_as_f32(view, place.transform);
            bytes = converted;
        }
        return put(index, row, view.rows, bytes);
    }

    Status write_quant(size_t index, int64_t row, const QuantView& panel) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
        if (panel.format != t->format || panel.cols != cols_of(*t) || !holds(*t, row, panel.rows))
            return fail("{}: rows [{}, {}) x {} of {} do not fit {} x {} of {}", show_name(t->name), row,
                        row + panel.rows, panel.cols, format_name(panel.format), rows_of(*t), cols_of(*t),
                        format_name(t->format));
        const int64_t row_bytes = layout_.places[index].row_bytes;
        std::vector<uint8_t> blocks(size_t(panel.rows * row_bytes));
        for (int64_t r = 0; r < panel.rows; ++r)
            if (const Status packed = pack_row(panel.panel(r, 1), blocks.data() + r * row_bytes); !packed.ok())
                return fail("{}: row {}: {}", show_name(t->name), row + r, packed.error().message());
        return put(index, row, panel.rows, std::as_bytes(std::span(blocks)));
    }

    Status write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) override {
        NIBBLE_TRY(const ExportTensor* t, tensor(index, true));
        if (t->input_scale != input_scale.has_value())
            return fail("{}: an input_scale was {}declared", show_name(t->name), t->input_scale ? "" : "not ");
        const GgufPlace& place = layout_.places[index];
        const auto write = [&](const std::optional<size_t>& at, float value, std::string_view what) -> Status {
            if (!at) return Ok{};
            if (!std::isfinite(value) || value <= 0)
                return fail("{}: {} {} must be finite and positive", show_name(t->name), what, value);
            return file_.write(*at, place.element * int64_t{sizeof value}, std::as_bytes(std::span(&value, 1)));
        };
        NIBBLE_CHECK(write(place.scale, tensor_scale, "tensor scale"));
        NIBBLE_CHECK(write(place.input_scale, input_scale.value_or(0), "input scale"));
        scalars_written_[index] = true;
        return Ok{};
    }

    Result<uint64_t> checksum(size_t index) const override {
        if (index >= spec_.tensors.size()) return fail("no tensor number {}", index);
        std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
        if (!state || XXH3_64bits_reset(state.get()) != XXH_OK) return fail("cannot start a checksum");
        std::vector<std::byte> buffer;
        const auto add = [&](size_t at, int64_t begin, int64_t bytes) -> Status {
            if (buffer.size() < checksum_chunk)
                buffer.resize(std::max(buffer.size(), std::min(checksum_chunk, size_t(bytes))));
            for (int64_t done = 0; done < bytes;) {
                const std::span part = std::span(buffer).first(std::min(buffer.size(), size_t(bytes - done)));
                NIBBLE_CHECK(file_.read_back(at, begin + done, part));
                XXH3_64bits_update(state.get(), part.data(), part.size());
                done += int64_t(part.size());
            }
            return Ok{};
        };
        const GgufPlace& place = layout_.places[index];
        NIBBLE_CHECK(add(place.tensor, place.offset, rows_of(spec_.tensors[index]) * place.row_bytes));
        for (const auto& scalar : {place.scale, place.input_scale})
            if (scalar) NIBBLE_CHECK(add(*scalar, place.element * int64_t{sizeof(float)}, sizeof(float)));
        return uint64_t{XXH3_64bits_digest(state.get())};
    }

    Status finish() override {
        if (!resumed_) NIBBLE_CHECK(check_complete());
        NIBBLE_CHECK(file_.finish());
        NIBBLE_CHECK(publish_documents());
        return work_.publish_file(std::string(gguf_work_file));
    }

private:
    static bool holds(const ExportTensor& t, int64_t row, int64_t count) {
        return row >= 0 && count >= 0 && row <= rows_of(t) && count <= rows_of(t) - row;
    }

    Result<const ExportTensor*> tensor(size_t index, bool quantized) const {
        if (index >= spec_.tensors.size())
            return fail("no tensor number {}, there are {}", index, spec_.tensors.size());
        const ExportTensor& t = spec_.tensors[index];
        if ((t.format != Format::none) == quantized) return &t;
        return fail("{}: was declared {}", show_name(t.name), quantized ? "plain" : "quantized");
    }

    // `count` rows in Hugging Face order. Whole heads stay where they are as a whole, so that a panel of them is one
    // write; rows of a part of a head are written one by one.
    Status put(size_t index, int64_t row, int64_t count, Bytes bytes) {
        const GgufPlace& place = layout_.places[index];
        const int64_t row_bytes = place.row_bytes, head = place.head_dim;
        if (head == 0) {
            NIBBLE_CHECK(file_.write(place.tensor, place.offset + row * row_bytes, bytes));
        } else if (row % head == 0 && count % head == 0) {
            std::vector<std::byte> moved(bytes.size());
            for (int64_t r = 0; r < count; ++r)
                std::ranges::copy(bytes.subspan(size_t(r * row_bytes), size_t(row_bytes)),
                                  moved.begin() + gguf_row_of_hf_row(r, head) * row_bytes);
            NIBBLE_CHECK(file_.write(place.tensor, place.offset + row * row_bytes, moved));
        } else {
            for (int64_t r = 0; r < count; ++r)
                NIBBLE_CHECK(file_.write(place.tensor, place.offset + gguf_row_of_hf_row(row + r, head) * row_bytes,
                                         bytes.subspan(size_t(r * row_bytes), size_t(row_bytes))));
        }
        rows_written_[index] += count;
        return Ok{};
    }

    // Forgotten rows would be zeros in the file. After a resume only the caller's journal knows what an earlier process
    // wrote.
    Status check_complete() const {
        for (size_t i = 0; i < spec_.tensors.size(); ++i) {
            const ExportTensor& t = spec_.tensors[i];
            if (rows_written_[i] < rows_of(t))
                return fail("{}: {} of {} rows were written", show_name(t.name), rows_written_[i].load(), rows_of(t));
            if (layout_.places[i].scale && !scalars_written_[i])
                return fail("{}: its scalar scales were not written", show_name(t.name));
        }
        return Ok{};
    }

    // Reports and the manifest go beside the output, before the weights get their name.
    Status publish_documents() const {
        const auto beside = [&](const std::string& name) {
            fs::path to = spec_.out.lexically_normal();
            to += "." + name;
            return to;
        };
        if (!spec_.manifest.empty()) NIBBLE_CHECK(write_file_atomically(beside("nibble.json"), spec_.manifest));
        std::vector<std::string> names;
        std::error_code error;
        for (fs::directory_iterator it(work_.path(), error), end; !error && it != end; it.increment(error))
            if (const std::string name = it->path().filename().string();
                name != gguf_work_file && !name.starts_with(job_file_prefix))
                names.push_back(name);
        if (error) return fail("{}: cannot list: {}", work_.path().string(), error.message());
        for (const std::string& name : names) NIBBLE_CHECK(rename_durably(work_.path() / name, beside(name)));
        return Ok{};
    }

    ExportSpec spec_;
    GgufExportLayout layout_;
    WorkFolder work_;
    GgufFileWriter file_;
    bool resumed_;
    std::vector<std::atomic<int64_t>> rows_written_;
    std::vector<std::atomic<bool>> scalars_written_;
};

// The rows of the embedding: what llama.cpp's vocabulary must have as many tokens as.
Result<int64_t> vocabulary_of(const GgufExportLayout& layout) {
    for (const GgufTensorSpec& t : layout.tensors)
        if (t.name == "token_embd.weight" && t.shape.size() == 2) return t.shape[0];
    return fail("the model has no embedding matrix, so it cannot be written as GGUF");
}

}  // namespace

Result<std::unique_ptr<Export>> open_gguf_export(ExportSpec spec, ExportMode mode) {
    std::error_code error;
    if (spec.out.extension() != ".gguf") return fail("{}: the name of a GGUF file ends in .gguf", spec.out.string());
    if (fs::is_directory(spec.out, error)) return fail("{}: is a folder; choose another output", spec.out.string());

    NIBBLE_TRY(const std::string architecture, gguf_architecture_of(spec));
    NIBBLE_TRY(auto layout, make_gguf_export_layout(spec, architecture));
    NIBBLE_TRY(const int64_t vocabulary, vocabulary_of(layout));
    GgufHeader header;
    NIBBLE_CHECK(add_gguf_hyper_parameters(spec, architecture, layout, header));
    NIBBLE_CHECK(add_gguf_tokenizer(spec, vocabulary, header));
    NIBBLE_TRY(const std::vector<float> divisors, gguf_rope_divisors(spec));
    if (!divisors.empty())
        layout.tensors.push_back({"rope_freqs.weight", GgmlType::f32, {static_cast<int64_t>(divisors.size())}});

    NIBBLE_TRY(auto file_layout, GgufLayout::make(header.metadata, layout.tensors));
    NIBBLE_TRY(auto work, WorkFolder::open(spec.out, mode, file_layout.file_bytes()));
    const fs::path path = work.path() / gguf_work_file;
    const auto fill = [&]() -> Result<GgufFileWriter> {
        NIBBLE_TRY(auto file, mode == ExportMode::create ? GgufFileWriter::create(path, std::move(file_layout))
                                                         : GgufFileWriter::reopen(path, std::move(file_layout)));
        if (!divisors.empty())
            NIBBLE_CHECK(file.write(layout.tensors.size() - 1, 0, std::as_bytes(std::span(divisors))));
        return file;
    };
    auto file = fill();
    if (!file.ok()) {
        if (mode == ExportMode::create) work.discard();
        return std::move(file).error();
    }
    return std::unique_ptr<Export>(std::make_unique<GgufExport>(std::move(spec), std::move(layout), std::move(work),
                                                                *std::move(file), mode == ExportMode::resume));
}

}  // namespace nibble
