#include "quant/quantized_inputs.h"

#include "formats/nvfp4.h"

namespace nibble {
namespace {

class QuantizedInputs : public Checkpoint {
public:
    QuantizedInputs(const Checkpoint& source, const Plan& plan, const ActivationScales& scales)
        : source_(source), tensors_(source.tensors().begin(), source.tensors().end()) {
        for (size_t i = 0; i < tensors_.size(); ++i) {
            if (plan.entries[i].spec.format == Format::none) continue;
            tensors_[i].activation = plan.entries[i].activation;
            tensors_[i].input_scale = scales.input[i];
        }
    }

    const std::filesystem::path& path() const override { return source_.path(); }
    Dialect dialect() const override { return source_.dialect(); }
    const Json& config() const override { return source_.config(); }
    KvFormat kv() const override { return source_.kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<std::vector<SideFile>> side_files() const override { return source_.side_files(); }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        return source_.read_plain(index, begin, count, scratch);
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        return source_.read_quant(index, begin, count, scratch);
    }
    void done_with(size_t index, int64_t begin, int64_t count) const override {
        source_.done_with(index, begin, count);
    }

private:
    const Checkpoint& source_;
    std::vector<CheckpointTensor> tensors_;
};

}  // namespace

std::unique_ptr<Checkpoint> with_quantized_inputs(const Checkpoint& source, const Plan& plan,
                                                  const ActivationScales& scales) {
    return std::make_unique<QuantizedInputs>(source, plan, scales);
}

void nvfp4_inputs(const MatmulKernels& kernels, const float* x, int64_t rows, int64_t cols, float input_scale,
                  ThreadPool& pool, float* out) {
    pool.parallel_for(rows, [&](int64_t i) {
        std::vector<uint8_t> codes(static_cast<size_t>(cols / 2)), scales(static_cast<size_t>(cols / nvfp4_block));
        kernels.quantize_row(x + i * cols, cols, ActivationFormat::nvfp4, input_scale,
                             {.codes = codes.data(), .block_scales = scales.data()});
        for (int64_t k = 0; k < cols; ++k) {
            const uint8_t pair = codes[static_cast<size_t>(k / 2)];
            const float scale = e4m3_to_float(scales[static_cast<size_t>(k / nvfp4_block)]);
            out[i * cols + k] =
                e2m1_to_float(static_cast<uint8_t>(k % 2 ? pair >> 4 : pair & 15)) * scale * input_scale;
        }
    });
}

}  // namespace nibble
