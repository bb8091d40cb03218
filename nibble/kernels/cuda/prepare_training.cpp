#include "kernels/prepare_training_cuda.h"

#include "kernels/cuda/attention/attention_backward_launch.h"
#include "kernels/cuda/loss/label_loss_drawn.h"
#include "kernels/cuda/loss/loss_launch.h"
#include "kernels/cuda/moe/moe_backward_launch.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {

Status prepare_training(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    NIBBLE_CHECK(cuda_status(prepare_attention_backward(), "attention_backward: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_label_loss(), "label_loss: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_teacher_loss(), "teacher_loss: cudaFuncSetAttribute"));
    NIBBLE_CHECK(cuda_status(prepare_label_loss_drawn(), "drawn_label_loss: cudaFuncSetAttribute"));
    return cuda_status(prepare_experts_back(), "experts: cudaFuncSetAttribute");
}

}  // namespace nibble::cuda
