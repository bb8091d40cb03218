// Implements Checkpoint for Hugging Face folders: opens the files and returns rows. hf_contents.h interprets the
// tensors.
#include "architecture/config_json.h"
#include "base/map_faults.h"
#include "base/model_place.h"
#include "checkpoint/exact_scales.h"
#include "checkpoint/held_tensors.h"
#include "checkpoint/hf_contents.h"
#include "checkpoint/mistral_folder.h"
#include "checkpoint/scale_values.h"
#include "checkpoint/side_files.h"
#include "checkpoint/tied_head.h"
#include "formats/fp8.h"
#include "io/json_events.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns rows [begin, begin + count) of a stored matrix whose rows have `row_bytes` bytes.
Bytes row_range(const ModelTensor& t, int64_t begin, int64_t count, int64_t row_bytes) {
    return t.record->data.subspan(static_cast<size_t>(begin * row_bytes), static_cast<size_t>(count * row_bytes));
}

// Returns elements [skip, skip + count) of a plain tensor.
Bytes element_range(const CatalogEntry& e, int64_t count, int64_t skip = 0) {
    return row_range(*e.data, e.first + skip, count, dtype_bytes(e.data->record->dtype));
}

Bytes plain_rows(const CatalogEntry& e, int64_t begin, int64_t count) {
    return element_range(e, count * e.tensor.cols(), begin * e.tensor.cols());
}

// Writes rows [begin, begin + count) of a part in the order of half-split rotation.
void rotate_rows(const CatalogEntry& e, const ModelTensor& part, int64_t row_bytes, int64_t begin, int64_t count,
                 std::byte* out) {
    const int64_t head = e.rotated, half = head / 2;
    for (int64_t r = begin; r < begin + count; ++r) {
        const int64_t from = r / head * head + r % half * 2 + r % head / half;
        std::ranges::copy(row_range(part, from, 1, row_bytes), out + (r - begin) * row_bytes);
    }
}

bool aligned(Bytes bytes, size_t alignment) { return reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0; }

void widen(const ModelTensor& t, int64_t first, std::span<float> out) {
    widen_scales(t.record->dtype, t.record->data.data() + first * dtype_bytes(t.record->dtype), out);
}

class HfCheckpoint : public Checkpoint, public HoldsTensors {
public:
    HfCheckpoint(fs::path path, std::unique_ptr<ModelFiles> files, HfContents contents, ScaleReading scales)
        : path_(std::move(path)),
          files_(std::move(files)),
          dialect_(contents.dialect),
          config_(std::move(contents.config)),
          kv_(contents.kv),
          entries_(std::move(contents.entries)),
          notes_(std::move(contents.notes)),
          scales_(scales) {
        for (const CatalogEntry& e : entries_) tensors_.push_back(e.tensor);
    }

    const fs::path& path() const override { return path_; }
    Dialect dialect() const override { return dialect_; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return kv_; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    std::span<const std::string> notes() const override { return notes_; }
    Result<std::vector<SideFile>> side_files() const override { return list_side_files(path_); }

    // Handles a stored head of a tied model: a copy of the embedding is removed, a different matrix unties the model.
    Status settle_tied_head() {
        NIBBLE_TRY(StoredHead head, find_stored_head(*this));
        if (head.kind == StoredHead::Kind::none) return Ok{};
        if (head.kind == StoredHead::Kind::different) {
            untie_head(config_);
        } else {
            entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(head.index));
            tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(head.index));
        }
        notes_.push_back(std::move(head.note));
        return Ok{};
    }

    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        NIBBLE_CHECK(check_maps());
        NIBBLE_TRY(const CatalogEntry* e, entry(index, begin, count, false));
        const CheckpointTensor& t = e->tensor;
        if (e->grid) return read_grid(*e, begin, count, scratch);
        if (e->data->record->dtype != t.dtype) {  // a KV scale that is stored in BF16
            scratch = Matrix(t.dtype, 1, 1);
            widen(*e->data, 0, {reinterpret_cast<float*>(scratch.data.data()), 1});
            return scratch.view();
        }
        if (e->stride) {
            scratch = Matrix(t.dtype, count, t.cols());
            const Bytes stored = e->data->record->data;
            if (t.experts)
                read_stack(stored, dtype_bytes(t.dtype), e->stride, t.cols(), begin, count, scratch.data.data());
            else
                read_transposed({stored, dtype_bytes(t.dtype), e->first, e->stride, t.cols()}, begin, count,
                                scratch.data.data());
            return scratch.view();
        }
        if (e->rotated) {
            scratch = Matrix(t.dtype, count, t.cols());
            rotate_rows(*e, *e->data, t.cols() * dtype_bytes(t.dtype), begin, count, scratch.data.data());
            return scratch.view();
        }
        const Bytes bytes = plain_rows(*e, begin, count);
        if (aligned(bytes, static_cast<size_t>(dtype_bytes(t.dtype))))
            return MatrixView{t.dtype, count, t.cols(), bytes.data()};
        scratch = Matrix(t.dtype, count, t.cols());
        std::ranges::copy(bytes, scratch.data.begin());
        return scratch.view();
    }

    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        NIBBLE_CHECK(check_maps());
        NIBBLE_TRY(const CatalogEntry* e, entry(index, begin, count, true));
        const CheckpointTensor& t = e->tensor;
        const Format f = t.format;
        if (f == Format::fp8_block128 && begin % fp8_tile)
            return fail("{}: row {} is not a multiple of {}", show_name(t.name), begin, fp8_tile);
        const auto bytes_of = [&](const ModelTensor& part, int64_t row_bytes, std::vector<uint8_t>& turned) {
            if (e->rotated) {
                turned.resize(static_cast<size_t>(count * row_bytes));
                rotate_rows(*e, part, row_bytes, begin, count, reinterpret_cast<std::byte*>(turned.data()));
                return static_cast<const uint8_t*>(turned.data());
            }
            if (!e->stride) return reinterpret_cast<const uint8_t*>(row_range(part, begin, count, row_bytes).data());
            turned.resize(static_cast<size_t>(count * row_bytes));
            read_stack(part.record->data, 1, e->stride, row_bytes, begin, count,
                       reinterpret_cast<std::byte*>(turned.data()));
            return static_cast<const uint8_t*>(turned.data());
        };
        QuantView view{.format = f, .rows = count, .cols = t.cols(), .tensor_scale = e->tensor_scale};
        view.codes = bytes_of(*e->data, code_bytes(f, 1, t.cols()), scratch.codes);
        if (e->block_scales) {
            view.block_scales = bytes_of(*e->block_scales, block_scale_bytes(f, 1, t.cols()), scratch.block_scales);
            if (scales_ == ScaleReading::checked) NIBBLE_CHECK(check_block_scales(*e, view).within(t.file));
        }
        if (e->float_scales) {
            const int64_t first = float_scale_count(f, begin, t.cols()), n = float_scale_count(f, count, t.cols());
            const ModelTensor& part = *e->float_scales;
            const Bytes data = part.record->data.subspan(static_cast<size_t>(first * dtype_bytes(part.record->dtype)));
            if (part.record->dtype == DType::f32 && aligned(data, alignof(float))) {
                view.float_scales = reinterpret_cast<const float*>(data.data());
            } else {
                scratch.float_scales.resize(static_cast<size_t>(n));
                widen(part, first, scratch.float_scales);
                view.float_scales = scratch.float_scales.data();
            }
            for (int64_t i = 0; i < n && scales_ == ScaleReading::checked; ++i)
                if (!is_finite(view.float_scales[i]) || view.float_scales[i] < 0.0f)
                    return fail("{}: {}: scale {} is {}: must be finite and not negative", t.file,
                                show_name(part.record->name), first + i, view.float_scales[i]);
        }
        return view;
    }

    Status hold(size_t index) const override {
        const CatalogEntry& e = entries_[index];
        for (const ModelTensor* part : {e.data, e.block_scales, e.float_scales})
            if (part) NIBBLE_CHECK(hold_pages(part->record->data));
        return Ok{};
    }

    void done_with(size_t index, int64_t begin, int64_t count) const override {
        const CatalogEntry& e = entries_[index];
        const CheckpointTensor& t = e.tensor;
        const auto drop = [&](const ModelTensor& part, Bytes bytes) {
            if (const MappedFile* map = files_->map(part.shard)) map->done_with(bytes);
        };
        if (t.experts && (e.grid || e.stride)) {  // pages hold parts of many rows
            if (begin + count < t.rows()) return;
            for (const ModelTensor* part : {e.data, e.block_scales})
                if (part) drop(*part, part->record->data);
        } else if (e.grid) {  // rows may be scattered, so all pages of an expert are released after its last row
            const int64_t expert = t.shape.size() == 3 ? begin : e.matrix.expert, n = t.shape.size() == 3 ? count : 1;
            if (t.shape.size() == 3 || begin + count == t.rows())
                drop(*e.data, row_range(*e.data, expert, n, e.grid->expert_bytes()));
        } else if (e.stride) {  // each page holds a part of every row, so all pages are released after the last row
            if (begin + count == t.rows()) drop(*e.data, element_range(e, t.rows() + (t.cols() - 1) * e.stride));
        } else if (!t.quantized()) {
            drop(*e.data, plain_rows(e, begin, count));
        } else {
            drop(*e.data, row_range(*e.data, begin, count, code_bytes(t.format, 1, t.cols())));
            if (e.block_scales)
                drop(*e.block_scales,
                     row_range(*e.block_scales, begin, count, block_scale_bytes(t.format, 1, t.cols())));
        }
    }

private:
    Result<const CatalogEntry*> entry(size_t index, int64_t begin, int64_t count, bool quantized) const {
        if (index >= entries_.size()) return fail("tensor {}: the checkpoint has {}", index, entries_.size());
        const CheckpointTensor& t = entries_[index].tensor;
        if (t.quantized() != quantized)
            return fail("{}: is {}, not {}", show_name(t.name), t.quantized() ? "quantized" : "plain",
                        quantized ? "quantized" : "plain");
        if (begin < 0 || count < 0 || count > t.rows() - begin)
            return fail("{}: rows [{}, {}) of {}", show_name(t.name), begin, begin + count, t.rows());
        return &entries_[index];
    }

    Result<MatrixView> read_grid(const CatalogEntry& e, int64_t begin, int64_t count, Matrix& scratch) const {
        const CheckpointTensor& t = e.tensor;
        const bool raw = scales_ == ScaleReading::raw;
        scratch = Matrix(t.dtype, count, t.cols());
        const std::span out(reinterpret_cast<uint16_t*>(scratch.data.data()), scratch.data.size() / 2);
        const std::string where = fmt::format("{}: {}", t.file, show_name(t.name));
        if (t.experts) {
            Status decoded = Ok{};
            for_each_expert(t.rows() / t.experts, begin, count, [&](int64_t x, int64_t first, int64_t n, int64_t done) {
                if (decoded.ok())
                    decoded = decode_grid_rows(*e.grid, {x, 0, e.matrix.turned}, first, t.cols(),
                                               out.subspan(size_t(done * t.cols()), size_t(n * t.cols())), raw);
            });
            NIBBLE_CHECK(std::move(decoded).within(where));
            return scratch.view();
        }
        if (t.shape.size() == 2) {
            NIBBLE_CHECK(decode_grid_rows(*e.grid, e.matrix, begin, t.cols(), out, raw).within(where));
            return scratch.view();
        }
        for (int64_t i = 0; i < count; ++i)
            NIBBLE_CHECK(decode_grid_rows(*e.grid, {begin + i, 0, e.matrix.turned}, 0, t.shape[2],
                                          out.subspan(size_t(i * t.cols()), size_t(t.cols())), raw)
                             .within(where));
        return scratch.view();
    }

    // Rejects codes that are not numbers (one in E8M0, two in E4M3) and negative E4M3 scales.
    Status check_block_scales(const CatalogEntry& e, const QuantView& view) const {
        const uint8_t limit = format_layout(view.format).e8m0_scales ? 0xFE : e4m3_max_code;
        const int64_t n = block_scale_bytes(view.format, view.rows, view.cols);
        uint8_t top = 0;
        for (int64_t i = 0; i < n; ++i) top = std::max(top, view.block_scales[i]);
        if (top <= limit) return Ok{};
        return fail("{}: contains the block scale 0x{:02x}, which is not a positive number",
                    show_name(e.block_scales->record->name), top);
    }

    fs::path path_;
    std::unique_ptr<ModelFiles> files_;
    Dialect dialect_;
    Json config_;
    KvFormat kv_;
    std::vector<CatalogEntry> entries_;
    std::vector<std::string> notes_;
    ScaleReading scales_;
    std::vector<CheckpointTensor> tensors_;
};

// Marks the queries and keys of Mistral's own layout, whose rotation pairs neighboring rows.
Status rotate_heads(HfContents& contents) {
    for (CatalogEntry& e : contents.entries) {
        const int64_t head = rotated_head(e.tensor.name, contents.config);
        if (head == 0) continue;
        if (head % 2 != 0 || e.tensor.shape.size() != 2 || e.tensor.rows() % head != 0 || e.float_scales || e.grid)
            return fail("{}: {} {} is not a matrix of heads of {} rows", show_name(e.tensor.name), e.tensor.stored_type,
                        shape_text(e.tensor.shape), head);
        e.rotated = head;
    }
    return Ok{};
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const fs::path& folder, ScaleReading scales,
                                                       StackReading stacks) {
    const fs::path config_path = folder / "config.json", hf_path = folder / "hf_quant_config.json";
    std::error_code ignored;
    const fs::path params_path = folder / "params.json";
    const bool mistral = !fs::exists(config_path, ignored) && fs::exists(params_path, ignored);
    NIBBLE_CHECK(check_no_adapter(folder));
    NIBBLE_TRY(Json config, read_config(mistral ? params_path : config_path));
    if (mistral) {
        NIBBLE_TRY(config, mistral_config(config).within(params_path.string()));
    }
    std::optional<Json> hf_quant_config;
    if (fs::exists(hf_path, ignored)) {
        NIBBLE_TRY(hf_quant_config, read_json_file(hf_path));
    }
    NIBBLE_TRY(auto opened, ModelFiles::open(folder));
    auto files = std::make_unique<ModelFiles>(std::move(opened));
    if (mistral) NIBBLE_CHECK(files->rename(mistral_name).within(folder.string()));
    NIBBLE_TRY(auto contents,
               read_contents(*files, std::move(config), hf_quant_config, scales, stacks).within(folder.string()));
    if (mistral) NIBBLE_CHECK(rotate_heads(contents).within(folder.string()));
    if (contents.dialect == Dialect::compressed_tensors) NIBBLE_CHECK(apply_exact_scales(folder, contents));
    auto checkpoint = std::make_unique<HfCheckpoint>(folder, std::move(files), std::move(contents), scales);
    NIBBLE_CHECK(checkpoint->settle_tied_head().within(folder.string()));
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace nibble
