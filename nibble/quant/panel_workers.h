// Workers that scan, search, quantize and measure panels: on the calling thread with kernels/quantize.h, or on a GPU
// (device_workers.h). Bytes, maxima, losses and statistics are bit-for-bit the same; quantize_unit.h uses both in the
// same way.
#pragma once

#include "kernels/quantize.h"

#include <memory>

namespace nibble {

// A panel that stays on the device, so that a later stage need not read it again; empty: it was not kept. Any worker
// may use it.
struct KeptPanel {
    MatrixView view;
    std::shared_ptr<std::byte> memory;
};

struct QuantizedPanel {
    Scan scan;  // set if requested; if a weight is not finite, the other members are invalid
    QuantStats stats;
    QuantView codes;  // on the host, valid until the worker's next call
};

// A worker may be used by one thread at a time.
class PanelWorker {
public:
    virtual ~PanelWorker() = default;

    // Copies rows of BF16 or F32 to the worker's device. Returns the view that the other calls take; it is valid until
    // the next place(), or as long as *keep if `keep` is given and there was room. Errors of all calls: a device
    // failure.
    virtual Result<MatrixView> place(const MatrixView& host, KeptPanel* keep) = 0;
    virtual Result<Scan> scan(const MatrixView& placed) = 0;
    // Adds to losses[i] as tensor_losses() of kernels/quantize.h does.
    virtual Status tensor_losses(const MatrixView& placed, const WeightSpec& spec, const TensorAmax& amax,
                                 std::span<const float> multipliers, std::span<double> losses) = 0;
    // Computes codes, scales and losses. `scan`: first check for weights that are not finite.
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
