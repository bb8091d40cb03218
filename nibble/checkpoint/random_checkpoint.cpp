#include "checkpoint/random_checkpoint.h"

#include "architecture/tensor_list.h"
#include "checkpoint/published_shapes.h"
#include "formats/minifloat.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace nibble {
namespace {

struct Linears {  // formats of the model's linears
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
};

CheckpointTensor random_tensor(TensorEntry entry, const Linears& linears, bool head) {
    CheckpointTensor t{.name = std::move(entry.name),
                       .shape = std::move(entry.shape),
                       .dtype = DType::bf16,
                       .file = "random",
                       .experts = entry.experts};
    if (entry.role == TensorRole::state || entry.role == TensorRole::choice || entry.role == TensorRole::hyper)
        t.dtype = DType::f32;
    if (entry.role == TensorRole::linear || (head && entry.role == TensorRole::head)) {
        t.format = linears.format;
        t.activation = linears.activation;
        if (stores_input_scale(t.activation)) t.input_scale = 0.01f;
    }
    t.stored_type = t.quantized() ? std::string(format_name(t.format)) : std::string(dtype_name(t.dtype));
    return t;
}

// Every tensor reads one pool of random numbers cyclically, from its own starting point, so that a value depends only
// on its position and not on which rows are read at once. The pool is stored twice in a row, so that rows that wrap
// around are contiguous.
class RandomCheckpoint : public Checkpoint {
public:
    RandomCheckpoint(std::string_view shape, Json config, std::vector<CheckpointTensor> tensors)
        : path_(shape),
          config_(std::move(config)),
          tensors_(std::move(tensors)),
          plain_(2 * period),
          codes_(2 * period) {
        std::mt19937_64 random(1);
        for (size_t i = 0; i < period; ++i) {
            const auto bits = static_cast<uint32_t>(random());
            const float x = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;  // uniform in [-1, 1)
            plain_[i] = plain_[period + i] = bf16_from_float(0.05f * x);
            codes_[i] = codes_[period + i] =
                static_cast<uint8_t>(bits & 0xBFu);  // valid as E4M3, too: below 2, never NaN
        }
        for (CheckpointTensor& t : tensors_)
            t.stored_bytes = t.quantized() ? code_bytes(t.format, t.rows(), t.cols()) : 2 * t.rows() * t.cols();
    }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }

    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        const CheckpointTensor& t = tensors_[index];
        const auto n = static_cast<size_t>(count * t.cols());
        size_t at = place(index, begin * t.cols());
        const bool vector = t.shape.size() == 1;
        if (!vector && t.dtype == DType::bf16 && n <= period)
            return MatrixView{DType::bf16, count, t.cols(), reinterpret_cast<const std::byte*>(&plain_[at])};
        scratch = Matrix(t.dtype, count, t.cols());
        for (size_t i = 0; i < n; ++i, at = at + 1 == period ? 0 : at + 1) {
            // Vectors (norms, biases, decays) have values around one.
            const float x = (vector ? 1.0f : 0.0f) + bf16_to_float(plain_[at]);
            const uint16_t narrow = bf16_from_float(x);
            if (t.dtype == DType::f32)
                std::memcpy(scratch.data.data() + 4 * i, &x, 4);
            else
                std::memcpy(scratch.data.data() + 2 * i, &narrow, 2);
        }
        return scratch.view();
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        const CheckpointTensor& t = tensors_[index];
        scratch = QuantMatrix(t.format, count, t.cols());
        fill(scratch.codes, index, begin, count, [](uint8_t c) { return c; });
        const bool e8m0 = t.format != Format::nvfp4 && t.format != Format::nvfp4_bs32;
        fill(scratch.block_scales, index, begin, count, [&](uint8_t c) {
            return static_cast<uint8_t>(e8m0 ? 118 + c % 3 : 0x30 + c % 16);  // 2^-9 ...; 0.5 to 1.9
        });
        std::ranges::fill(scratch.float_scales, 0.015625f);  // exact in BF16, too
        const bool fp4 = t.format == Format::nvfp4 || t.format == Format::nvfp4_bs32;
        scratch.tensor_scale = fp4 ? 0.007f : t.format == Format::fp8 ? 0.02f : 1.0f;
        return scratch.view();
    }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

private:
    static constexpr size_t period = (size_t{16} << 20) - 3;  // a prime, so that no two rows of a matrix are equal
    static size_t place(size_t index, int64_t element) {
        return (index * 977 * 64 + static_cast<size_t>(element)) % period;
    }
    // Fills `to` with `count` rows of bytes; the first is row `begin` of the tensor.
    template <class Change>
    void fill(std::vector<uint8_t>& to, size_t index, int64_t begin, int64_t count, const Change& change) const {
        if (to.empty()) return;
        size_t at = place(index, begin * (std::ssize(to) / count));
        for (uint8_t& c : to) {
            c = change(codes_[at]);
            if (++at == period) at = 0;
        }
    }

    std::filesystem::path path_;
    Json config_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<uint16_t> plain_;
    std::vector<uint8_t> codes_;
};

ActivationFormat usual_inputs(Format format) {
    switch (format) {
        case Format::nvfp4:
        case Format::nvfp4_bs32:
            return ActivationFormat::nvfp4;
        case Format::fp8:
            return ActivationFormat::fp8;
        case Format::fp8_row:
            return ActivationFormat::fp8_token;
        case Format::fp8_block128:
            return ActivationFormat::fp8_group128;
        case Format::mxfp8:
            return ActivationFormat::mxfp8;
        case Format::mxfp4:
            return ActivationFormat::mxfp4;
        default:
            return ActivationFormat::none;
    }
}

Result<std::unique_ptr<Checkpoint>> make_random(std::string_view name, Json config, const Linears& linears, bool head,
                                                bool prediction = false) {
    if (prediction) {
        config["num_nextn_predict_layers"] = 1;
        config["mtp_hybrid_override_pattern"] = "*E";
    }
    NIBBLE_TRY(const ModelConfig model, model_config(config));
    std::vector<CheckpointTensor> tensors;
    for (TensorEntry& entry : tensor_list(model)) tensors.push_back(random_tensor(std::move(entry), linears, head));
    if (prediction)
        for (TensorEntry& entry : prediction_tensor_list(model))
            tensors.push_back(random_tensor(std::move(entry), {}, false));
    return std::unique_ptr<Checkpoint>(std::make_unique<RandomCheckpoint>(name, std::move(config), std::move(tensors)));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> random_checkpoint(Json config) {
    // The key describes the published weights, not these (DeepSeek-V3's are FP8).
    for (const char* key : {"quantization_config", "compression_config"}) config.erase(key);
    const std::string type = config.value("model_type", "");
    return make_random(type, std::move(config), {}, false);
}

Result<std::unique_ptr<Checkpoint>> random_checkpoint(const RandomModel& model) {
    const std::string& shape = model.shape;
    NIBBLE_TRY(Json config, shape_config(shape).within("--shape"));
    Linears linears;
    if (model.format != "bf16") {
        const auto known = format_from_name(model.format);
        if (!known) return fail("--format: unknown format '{}'", model.format);
        linears.format = *known;
        if (model.inputs) linears.activation = usual_inputs(*known);
    }
    if (model.layers > 0 && model.layers < config["num_hidden_layers"].get<int>()) {
        config["num_hidden_layers"] = model.layers;
        if (config.contains("hybrid_override_pattern"))
            config["hybrid_override_pattern"] =
                config["hybrid_override_pattern"].get<std::string>().substr(0, size_t(model.layers));
    }
    if (model.vocab > 0) config["vocab_size"] = std::min(model.vocab, config["vocab_size"].get<int64_t>());
    if (model.prediction && shape != "nemotron-3-nano")
        return fail("--shape {}: has no layers for multi-token prediction (nemotron-3-nano has)", shape);
    return make_random(shape, std::move(config), linears, model.head, model.prediction);
}

}  // namespace nibble
