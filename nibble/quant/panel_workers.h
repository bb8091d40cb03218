// Where panels are scanned, searched, quantized and measured: on the calling thread by kernels/quantize.h, or on a GPU
// (device_workers.h). Bytes, maxima, losses and statistics are the same bit for bit; the pipeline around them
// (quantize_unit.h) is written once.
#pragma once

#include "kernels/quantize.h"

#include <memory>

namespace nibble {

// A panel that stays where it was placed, so that a later stage need not read it again; empty when it does not. Any
// worker may use it.
struct KeptPanel {
    MatrixView view;
    std::shared_ptr<std::byte> memory;
};

struct QuantizedPanel {
    Scan scan;  // when it was asked for; with a weight that is not finite the rest means nothing
    QuantStats stats;
    QuantView codes;  // on the host, until the worker's next call
};

// One thread's; used by one thread at a time.
class PanelWorker {
public:
    virtual ~PanelWorker() = default;

    // Brings rows of BF16 or F32 to where they are worked on: the view that the other calls take, valid until the next
    // place(), or with *keep where `keep` is given and there was room.
    virtual Result<MatrixView> place(const MatrixView& host, KeptPanel* keep) = 0;
    virtual Result<Scan> scan(const MatrixView& placed) = 0;
    // losses[i] += ..., as tensor_losses of kernels/quantize.h.
    virtual Status tensor_losses(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                                 std::span<const float> multipliers, std::span<double> losses) = 0;
    // Codes, scales and what they lose. `scan`: look for weights that are not finite first.
    virtual Result<QuantizedPanel> quantize(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                                            float tensor_scale, bool scan) = 0;
};

class PanelWorkers {
public:
    virtual ~PanelWorkers() = default;
    virtual std::string_view name() const = 0;  // "avx512", "cuda:0 NVIDIA H200"
    virtual int count() const = 0;
    virtual PanelWorker& operator[](int worker) = 0;
};

std::unique_ptr<PanelWorkers> host_workers(const QuantizeKernels& kernels, int count);

}  // namespace nibble
