#include "quant/panel_workers.h"

#include "quant/panels.h"

namespace nibble {
namespace {

class HostWorker : public PanelWorker {
public:
    explicit HostWorker(const QuantizeKernels& kernels) : kernels_(&kernels) {}

    Result<MatrixView> place(const MatrixView& host, KeptPanel*) override { return host; }
    Result<Scan> scan(const MatrixView& placed) override { return kernels_->scan(placed); }
    Status tensor_losses(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                         std::span<const float> multipliers, std::span<double> losses) override {
        kernels_->tensor_losses(placed, spec, amax, multipliers, losses);
        return Ok{};
    }
    Result<QuantizedPanel> quantize(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                                    float tensor_scale, bool scan) override {
        QuantizedPanel result;
        if (scan) result.scan = kernels_->scan(placed);
        if (result.scan.first_nonfinite >= 0) return result;
        QuantSpan out = reshape(out_, spec.format, placed.rows, placed.cols);
        out.tensor_scale = tensor_scale;
        kernels_->quantize(placed, spec, amax, out, result.stats);
        kernels_->measure(placed, out, result.stats);
        result.codes = out;
        return result;
    }

private:
    const QuantizeKernels* kernels_;
    QuantMatrix out_;
};

class HostWorkers : public PanelWorkers {
public:
    HostWorkers(const QuantizeKernels& kernels, int count)
        : name_(kernels.name), workers_(static_cast<size_t>(count), HostWorker(kernels)) {}

    std::string_view name() const override { return name_; }
    int count() const override { return static_cast<int>(workers_.size()); }
    PanelWorker& operator[](int worker) override { return workers_[static_cast<size_t>(worker)]; }

private:
    std::string_view name_;
    std::vector<HostWorker> workers_;
};

}  // namespace

std::unique_ptr<PanelWorkers> host_workers(const QuantizeKernels& kernels, int count) {
    return std::make_unique<HostWorkers>(kernels, count);
}

}  // namespace nibble
