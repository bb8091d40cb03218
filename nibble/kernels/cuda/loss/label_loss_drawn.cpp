#include "kernels/cuda/loss/label_loss_drawn.h"

#include "kernels/loss_cuda.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {

Status drawn_label_loss(const LabelLoss& l, const Drawn& drawn, const Stream& stream) {
    constexpr int64_t most = int64_t{1} << 19;  // limit of a sum of weights
    if (l.rows < 1 || l.vocab < 8 || l.vocab % 8 || l.vocab > most)
        return fail("drawn_label_loss: {} rows of {}; multiples of 8 up to {}", l.rows, l.vocab, most);
    if (!(drawn.temperature > 0)) return fail("drawn_label_loss: temperature {}", drawn.temperature);
    if (l.d_logits && !l.slopes) return fail("drawn_label_loss: d_logits needs slopes");
    for (const std::byte* p : {l.logits, static_cast<const std::byte*>(l.d_logits)})
        if (reinterpret_cast<uintptr_t>(p) % 16)
            return fail("drawn_label_loss: device pointers must be 16-byte aligned");
    return cuda_status(launch_label_loss_drawn({l, drawn}, static_cast<cudaStream_t>(stream.handle())),
                       "drawn_label_loss: kernel launch");
}

}  // namespace nibble::cuda
