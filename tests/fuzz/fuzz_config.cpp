// Input: config.json next to fixed tensors (or, after a first byte 'H', hf_quant_config.json). It must be refused with
// a message, or give a checkpoint whose tensors can be read and whose configuration is written back unchanged.
#include "architecture/config_json.h"
#include "checkpoint/hf_contents.h"
#include "io/safetensors_writer.h"
#include "message.h"

#include <unistd.h>

#include <array>

using namespace nibble;

namespace {

namespace fs = std::filesystem;

const std::vector<TensorSpec> model_optimizer_tensors{{"lm_head.weight", DType::bf16, {4, 4}},
                                                      {"m.0.up_proj.weight", DType::u8, {4, 16}},
                                                      {"m.0.up_proj.weight_scale", DType::f8_e4m3, {4, 2}},
                                                      {"m.0.up_proj.weight_scale_2", DType::f32, {}},
                                                      {"m.0.up_proj.input_scale", DType::f32, {}},
                                                      {"m.0.k_proj.k_scale", DType::f32, {}}};
const std::vector<TensorSpec> compressed_tensors{{"lm_head.weight", DType::bf16, {4, 4}},
                                                 {"m.0.up_proj.weight_packed", DType::u8, {4, 16}},
                                                 {"m.0.up_proj.weight_scale", DType::f8_e4m3, {4, 2}},
                                                 {"m.0.up_proj.weight_global_scale", DType::f32, {1}}};
const std::vector<TensorSpec> fp8_block_tensors{{"m.0.up_proj.weight", DType::f8_e4m3, {4, 16}},
                                                {"m.0.up_proj.weight_scale_inv", DType::f32, {1, 1}}};

// Creates a folder with these tensors: zeros, and ones for FP32.
ModelFiles open_folder(const std::vector<TensorSpec>& specs) {
    std::string folder = (fs::temp_directory_path() / "fuzz-config-XXXXXX").string();
    require(::mkdtemp(folder.data()) != nullptr);
    auto layout = SafetensorsLayout::make(specs);
    require(layout.ok());
    auto writer = SafetensorsFileWriter::create(fs::path(folder) / "model.safetensors", *std::move(layout));
    require(writer.ok());
    const float one = 1.0f;
    for (size_t i = 0; i < specs.size(); ++i)
        if (specs[i].dtype == DType::f32) require(writer->write(i, 0, std::as_bytes(std::span(&one, 1))).ok());
    require(writer->finish().ok());
    auto files = ModelFiles::open(folder);
    require(files.ok());
    fs::remove_all(folder);  // the memory maps stay valid
    return *std::move(files);
}

// Checks what every dialect's reader guarantees about its entries.
void check_contents(const HfContents& contents) {
    for (const CatalogEntry& e : contents.entries) {
        const CheckpointTensor& t = e.tensor;
        require(e.data != nullptr);
        if (!t.quantized()) continue;
        const FormatLayout layout = format_layout(t.format);
        require(t.shape.size() == 2 && format_fits(t.format, t.cols()));
        require(int64_t(e.data->record->data.size()) == code_bytes(t.format, t.rows(), t.cols()));
        require((e.block_scales != nullptr) == (layout.block != 0));
        require((e.float_scales != nullptr) == layout.float_scales);
        if (e.block_scales)
            require(int64_t(e.block_scales->record->data.size()) == block_scale_bytes(t.format, t.rows(), t.cols()));
        require(e.tensor_scale > 0.0f && t.input_scale.has_value() == stores_input_scale(t.activation));
    }
    require(!contents.config.contains("quantization_config"));
    const auto text = config_text(contents.config, 2);
    if (!text.ok()) return;
    const auto again = parse_config(*text);
    require(again.ok() && *again == contents.config);
}

Result<HfContents> read(const ModelFiles& files, std::string_view text) {
    if (!text.starts_with('H')) {
        NIBBLE_TRY(auto config, parse_config(text));
        return read_contents(files, std::move(config), std::nullopt);
    }
    NIBBLE_TRY(auto second, parse_json(text.substr(1)));
    return read_contents(files, Json::object(), std::move(second));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::array folders{open_folder(model_optimizer_tensors), open_folder(compressed_tensors),
                                    open_folder(fp8_block_tensors)};
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const ModelFiles& files : folders) {
        const auto contents = read(files, text);
        if (contents.ok()) {
            check_contents(*contents);
            continue;
        }
        require_message(contents.error());
    }
    return 0;
}
