#include "folders.h"

#include "formats/minifloat.h"
#include "formats/nvfp4.h"
#include "io/safetensors.h"

#include <cstring>

namespace nibble::test {

namespace fs = std::filesystem;

RawTensor filled(std::string name, DType dtype, std::vector<int64_t> shape) {
    int64_t n = dtype_bytes(dtype);
    for (int64_t d : shape) n *= d;
    std::vector<std::byte> bytes(static_cast<size_t>(n));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    return {std::move(name), dtype, std::move(shape), std::move(bytes)};
}

void write_safetensors(const fs::path& path, const std::vector<RawTensor>& tensors) {
    std::vector<TensorSpec> specs;
    for (const RawTensor& t : tensors) specs.push_back({t.name, t.dtype, t.shape});
    auto writer = value_of(SafetensorsFileWriter::create(path, value_of(SafetensorsLayout::make(specs))));
    for (size_t i = 0; i < tensors.size(); ++i) check(writer.write(i, 0, tensors[i].bytes));
    check(writer.finish());
}

std::vector<RawTensor> read_safetensors(const fs::path& path) {
    const auto file = value_of(SafetensorsFile::open(path));
    std::vector<RawTensor> out;
    for (const TensorRecord& t : file.tensors())
        out.push_back({t.name, t.dtype, t.shape, {t.data.begin(), t.data.end()}});
    return out;
}

std::map<std::string, RawTensor> read_folder(const fs::path& folder) {
    std::map<std::string, RawTensor> out;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors")
            for (RawTensor& t : read_safetensors(entry.path())) out.emplace(t.name, std::move(t));
    return out;
}

ExportSpec spec_of(const Checkpoint& in, Dialect dialect, fs::path out) {
    ExportSpec spec{.dialect = dialect, .out = std::move(out), .kv = in.kv(), .config = in.config()};
    for (const CheckpointTensor& t : in.tensors())
        spec.tensors.push_back({.name = t.name,
                                .shape = t.shape,
                                .dtype = t.dtype,
                                .format = t.format,
                                .activation = t.activation,
                                .input_scale = t.input_scale.has_value(),
                                .listed_module = t.listed_module});
    spec.side_files = value_of(in.side_files());
    return spec;
}

void write_all(const Checkpoint& in, Export& out) {
    Matrix plain;
    QuantMatrix quant;
    for (size_t i = 0; i < in.tensors().size(); ++i) {
        const CheckpointTensor& t = in.tensors()[i];
        for (int64_t row = 0; row < t.rows(); row += 128) {
            const int64_t n = std::min<int64_t>(128, t.rows() - row);
            if (t.quantized())
                check(out.write_quant(i, row, value_of(in.read_quant(i, row, n, quant))));
            else
                check(out.write_plain(i, row, value_of(in.read_plain(i, row, n, plain))));
        }
        if (!t.quantized()) continue;
        const float scale = value_of(in.read_quant(i, 0, 0, quant)).tensor_scale;
        check(out.write_scalars(i, scale, t.input_scale));
    }
    check(out.finish());
}

std::vector<float> decode(const Checkpoint& in, size_t index) {
    const CheckpointTensor& t = in.tensors()[index];
    QuantMatrix scratch;
    const QuantView q = value_of(in.read_quant(index, 0, t.rows(), scratch));
    const FormatLayout layout = format_layout(q.format);
    std::vector<float> out;
    for (int64_t r = 0; r < q.rows; ++r) {
        for (int64_t c = 0; c < q.cols; ++c) {
            const int64_t at = r * q.cols + c;
            const uint8_t byte = layout.code_bits == 4 ? q.codes[at / 2] : q.codes[at];
            const uint8_t half = at % 2 ? byte >> 4 : byte & 15;
            const float code = layout.integers         ? static_cast<float>(half) - 8
                               : layout.code_bits == 4 ? e2m1_to_float(half)
                                                       : e4m3_to_float(byte);
            float scale = q.tensor_scale;
            if (layout.block) {
                const uint8_t s = q.block_scales[r * (q.cols / layout.block) + c / layout.block];
                scale = layout.e8m0_scales ? e8m0_to_float(s) : e4m3_to_float(s) * q.tensor_scale;
            } else if (q.format == Format::fp8_row) {
                scale = q.float_scales[r];
            } else if (q.format == Format::fp8_block128) {
                scale = q.float_scales[r / 128 * ((q.cols + 127) / 128) + c / 128];
            } else if (q.format == Format::int4) {
                scale = q.float_scales[(r * q.cols + c) / 128];
            }
            out.push_back(code * scale);
        }
    }
    return out;
}

size_t index_of(const Checkpoint& in, std::string_view name) {
    for (size_t i = 0; i < in.tensors().size(); ++i)
        if (in.tensors()[i].name == name) return i;
    throw std::runtime_error("no tensor " + std::string(name));
}

}  // namespace nibble::test
