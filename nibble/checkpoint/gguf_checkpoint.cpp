// Implements Checkpoint for a GGUF file. NVFP4 and MXFP4 tensors are quantized matrices in canonical form; all others
// are plain, decoded and rounded to BF16 (F32 where published folders use F32).
#include "base/map_faults.h"
#include "checkpoint/export.h"
#include "checkpoint/gguf_import.h"
#include "checkpoint/held_tensors.h"
#include "formats/ggml_blocks.h"

#include <algorithm>

namespace nibble {
namespace {

Format quantized_format(GgmlType type) {
    return type == GgmlType::nvfp4 ? Format::nvfp4 : type == GgmlType::mxfp4 ? Format::mxfp4 : Format::none;
}

// Unpacks one row of blocks into canonical codes and scales. Error: a scale that ggml accepts but the format does not
// define.
Status unpack_row(GgmlType type, Bytes row, uint8_t* codes, uint8_t* scales) {
    const auto* block = reinterpret_cast<const uint8_t*>(row.data());
    const uint8_t* end = block + row.size();
    const int64_t bytes = ggml_type_info(type).bytes;
    for (; block != end; block += bytes) {
        if (type == GgmlType::mxfp4) {
            unpack_mxfp4(block, codes, scales);
            if (*scales == 255) return fail("block scale 255, which is not a number in E8M0");
            codes += 16;
            scales += 1;
            continue;
        }
        unpack_nvfp4(block, codes, scales);
        for (int s = 0; s < 4; ++s) {
            if (scales[s] & 0x80) return fail("block scale {:#x} with a sign bit", scales[s]);
            if (scales[s] == e4m3_nan_code) scales[s] = 0;  // ggml decodes it as 0
        }
        codes += 32;
        scales += 4;
    }
    return Ok{};
}

class GgufCheckpoint : public Checkpoint, public HoldsTensors {
public:
    GgufCheckpoint(std::filesystem::path path, GgufSource source)
        : path_(std::move(path)), source_(std::move(source)) {}

    Status describe() {
        for (const GgufSourceTensor& t : source_.tensors()) {
            CheckpointTensor out{.name = t.name,
                                 .shape = t.shape,
                                 .dtype = t.dtype,
                                 .format = t.shape.size() == 2 ? quantized_format(t.source->type) : Format::none,
                                 .file = source_.file().part_of(t.data(), path_).filename().string(),
                                 .stored_bytes = static_cast<int64_t>(t.data().size()),
                                 .stored_type = std::string(ggml_type_name(t.source->type))};
            NIBBLE_TRY(out.input_scale, source_.input_scale(t));
            if (out.input_scale) out.activation = ActivationFormat::nvfp4;
            tensors_.push_back(std::move(out));
        }
        return Ok{};
    }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::gguf; }
    const Json& config() const override { return source_.config(); }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    std::span<const std::string> notes() const override { return source_.notes(); }
    Result<std::vector<SideFile>> side_files() const override {
        return gguf_side_files(source_).within(path_.string());
    }

    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        NIBBLE_CHECK(check_maps());
        NIBBLE_CHECK(check(index, begin, count, false));
        const GgufSourceTensor& t = source_.tensors()[index];
        scratch = Matrix(t.dtype, count, t.cols());
        if (t.dtype == DType::f32) {
            NIBBLE_CHECK(source_.read_rows(t, begin, begin + count, reinterpret_cast<float*>(scratch.data.data())));
        } else {
            NIBBLE_CHECK(
                source_.read_rows_bf16(t, begin, begin + count, reinterpret_cast<uint16_t*>(scratch.data.data())));
        }
        return scratch.view();
    }

    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        NIBBLE_CHECK(check_maps());
        NIBBLE_CHECK(check(index, begin, count, true));
        const GgufSourceTensor& t = source_.tensors()[index];
        const Format format = tensors_[index].format;
        scratch = QuantMatrix(format, count, t.cols());
        scratch.tensor_scale = t.scale;
        for (int64_t r = 0; r < count; ++r) {
            const Status unpacked = unpack_row(t.source->type, source_.row_blocks(t, begin + r),
                                               scratch.codes.data() + code_bytes(format, r, t.cols()),
                                               scratch.block_scales.data() + block_scale_bytes(format, r, t.cols()));
            if (!unpacked.ok())
                return fail("{}: row {}: {}", gguf_shown(t.name), begin + r, unpacked.error().message());
        }
        return scratch.view();
    }

    // Rows of one range may be scattered in the file, so pages are released only after the last row.
    void done_with(size_t index, int64_t begin, int64_t count) const override {
        const GgufSourceTensor& t = source_.tensors()[index];
        if (begin + count == t.rows()) source_.file().done_with(t.data());
    }

    Status hold(size_t index) const override { return hold_pages(source_.tensors()[index].data()); }

private:
    Status check(size_t index, int64_t begin, int64_t count, bool quantized) const {
        if (index >= tensors_.size()) return fail("{}: no tensor number {}", path_.string(), index);
        const CheckpointTensor& t = tensors_[index];
        if (t.quantized() != quantized)
            return fail("{}: is {}", gguf_shown(t.name), quantized ? "plain" : "a quantized matrix");
        if (begin < 0 || count < 0 || count > t.rows() || begin > t.rows() - count)
            return fail("{}: rows [{}, {}) of {}", gguf_shown(t.name), begin, begin + count, t.rows());
        return Ok{};
    }

    std::filesystem::path path_;
    GgufSource source_;
    std::vector<CheckpointTensor> tensors_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& file, ScaleReading scales) {
    NIBBLE_TRY(auto source, GgufSource::open(file, scales));
    auto checkpoint = std::make_unique<GgufCheckpoint>(file, std::move(source));
    NIBBLE_CHECK(checkpoint->describe().within(file.string()));
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace nibble
