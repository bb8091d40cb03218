#include "train/lora_export.h"

#include "checkpoint/stored_parts.h"
#include "formats/minifloat.h"
#include "io/atomic_file.h"
#include "io/safetensors_writer.h"
#include "kernels/quantize.h"
#include "model/cpu/widen.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lora_a = ".lora_A.weight", lora_b = ".lora_B.weight", weight_suffix = ".weight";

// Returns the adapters of a weight, if any.
std::optional<std::pair<size_t, size_t>> adapters_of(const Parameters& adapters, std::string_view weight) {
    if (!weight.ends_with(weight_suffix)) return {};
    const std::string linear(weight.substr(0, weight.size() - weight_suffix.size()));
    const auto a = adapters.id(linear + std::string(lora_a)), b = adapters.id(linear + std::string(lora_b));
    if (!a.ok() || !b.ok()) return {};
    return std::pair{*a, *b};
}

}  // namespace

MergedCheckpoint::MergedCheckpoint(const Checkpoint& base, const Parameters& adapters, const TrainLora& lora)
    : base_(base), adapters_(adapters), scale_(static_cast<float>(lora.alpha / static_cast<double>(lora.rank))) {
    const auto tensors = base.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        CheckpointTensor t = tensors[i];
        if (is_kv_scale_name(t.name)) continue;  // scale of a quantized cache, which a plain checkpoint does not have
        if (t.quantized() || t.shape.size() == 2) t.dtype = DType::bf16;
        t.format = Format::none;
        t.activation = ActivationFormat::none;
        t.input_scale.reset();
        t.listed_module = false;
        t.file.clear();
        t.stored_type = std::string(dtype_name(t.dtype));
        t.stored_bytes = t.rows() * t.cols() * dtype_bytes(t.dtype);
        tensors_.push_back(std::move(t));
        source_.push_back(i);
    }
}

Result<MatrixView> MergedCheckpoint::read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const {
    const CheckpointTensor& t = tensors_[index];
    const CheckpointTensor& from = base_.tensors()[source_[index]];
    const auto pair = adapters_of(adapters_, t.name);
    if (!pair && !from.quantized() && from.dtype == t.dtype)
        return base_.read_plain(source_[index], begin, count, scratch);
    std::vector<float> wide(static_cast<size_t>(count * t.cols()));
    if (from.quantized()) {
        // FP8 tiles begin at multiples of 128 rows.
        const int64_t first = begin / 128 * 128;
        QuantMatrix codes;
        NIBBLE_TRY(const QuantView view, base_.read_quant(source_[index], first, begin + count - first, codes));
        std::vector<float> all(static_cast<size_t>((begin + count - first) * t.cols()));
        NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels());
        kernels->decode(view, all.data());
        std::copy(all.end() - std::ssize(wide), all.end(), wide.begin());
    } else {
        Matrix plain;
        NIBBLE_TRY(const MatrixView view, base_.read_plain(source_[index], begin, count, plain));
        widen(view, wide.data());
    }
    if (pair) {
        const std::span<const float> a = adapters_.master(pair->first), b = adapters_.master(pair->second);
        const int64_t rank = adapters_.tensors()[pair->first].rows(), cols = t.cols();
        std::vector<float> term(static_cast<size_t>(cols));
        for (int64_t i = 0; i < count; ++i) {
            std::ranges::fill(term, 0.0f);
            for (int64_t r = 0; r < rank; ++r) {
                const float left = b[static_cast<size_t>((begin + i) * rank + r)];
                for (int64_t j = 0; j < cols; ++j)
                    term[static_cast<size_t>(j)] += left * a[static_cast<size_t>(r * cols + j)];
            }
            for (int64_t j = 0; j < cols; ++j)
                wide[static_cast<size_t>(i * cols + j)] += scale_ * term[static_cast<size_t>(j)];
        }
    }
    scratch = Matrix(DType::bf16, count, t.cols());
    for (size_t i = 0; i < wide.size(); ++i) {
        const uint16_t code = bf16_from_float(wide[i]);
        std::memcpy(scratch.data.data() + 2 * i, &code, sizeof code);
    }
    return scratch.view();
}

Result<QuantView> MergedCheckpoint::read_quant(size_t index, int64_t, int64_t, QuantMatrix&) const {
    return fail("tensor '{}' is not quantized", tensors_[index].name);
}

void MergedCheckpoint::done_with(size_t index, int64_t begin, int64_t count) const {
    base_.done_with(source_[index], begin, count);
}

Status write_peft_adapter(const fs::path& folder, const Parameters& adapters, const TrainLora& lora,
                          const fs::path& base) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return fail("{}: {}", folder.string(), error.message());
    std::vector<TensorSpec> specs;
    std::vector<std::string> modules;
    for (const CheckpointTensor& t : adapters.tensors()) {
        specs.push_back({"base_model.model." + t.name, DType::f32, t.shape});
        if (t.name.ends_with(lora_a)) {
            const std::string linear = t.name.substr(0, t.name.size() - lora_a.size());
            const std::string last = linear.substr(linear.rfind('.') + 1);
            if (std::ranges::find(modules, last) == modules.end()) modules.push_back(last);
        }
    }
    NIBBLE_TRY(auto layout, SafetensorsLayout::make(specs));
    const fs::path part = folder / "adapter_model.safetensors.part";
    NIBBLE_TRY(auto writer, SafetensorsFileWriter::create(part, std::move(layout)));
    for (size_t i = 0; i < specs.size(); ++i) NIBBLE_CHECK(writer.write(i, 0, std::as_bytes(adapters.master(i))));
    NIBBLE_CHECK(writer.finish());
    NIBBLE_CHECK(rename_durably(part, folder / "adapter_model.safetensors"));
    const Json config{
        {"peft_type", "LORA"},      {"task_type", "CAUSAL_LM"}, {"base_model_name_or_path", base.string()},
        {"r", lora.rank},           {"lora_alpha", lora.alpha}, {"lora_dropout", 0.0},
        {"bias", "none"},           {"fan_in_fan_out", false},  {"inference_mode", true},
        {"target_modules", modules}};
    return write_file_atomically(folder / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace nibble
