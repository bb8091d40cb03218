// Kernels of training, which are not emulated: a trainer can be planned, but not run.
#include "kernels/attention_backward_cuda.h"
#include "kernels/cache_rows_cuda.h"
#include "kernels/cast_cuda.h"
#include "kernels/codes_matmul_cuda.h"
#include "kernels/dense_backward_cuda.h"
#include "kernels/elementwise_backward_cuda.h"
#include "kernels/lora_cuda.h"
#include "kernels/loss_cuda.h"
#include "kernels/moe_backward_cuda.h"
#include "kernels/optimizer_cuda.h"
#include "kernels/prepare_training_cuda.h"
#include "kernels/ssm_backward_cuda.h"

namespace nibble::cuda {

namespace {

Error missing_training() { return fail("the emulated GPU does not have this kernel"); }

}  // namespace

// ---- attention_backward_cuda.h --------------------------------------------------------------------------------------

bool has_attention_backward(int) { return false; }
int64_t attention_backward_workspace(int64_t, int) { return 0; }
Status attention_backward(const AttentionBackward&, const Stream&) { return missing_training(); }
Status latent_rows(const LatentShape&, const LatentRows&, const Stream&) { return missing_training(); }
Status latent_backward(const LatentShape&, const LatentBackward&, const Stream&) { return missing_training(); }
Status latent_join(const LatentJoin&, const Stream&) { return missing_training(); }

// ---- cache_rows_cuda.h ----------------------------------------------------------------------------------------------

Status round_cache(const RoundCache&, const Stream&) { return missing_training(); }
Status clear_clipped(const ClearClipped&, const Stream&) { return missing_training(); }
Status see_cache(const SeeCache&, const Stream&) { return missing_training(); }

// ---- cast_cuda.h ----------------------------------------------------------------------------------------------------

Status cast_values(const CastSource&, const CastRule&, const CastRandom&, const float*, const CastValues&,
                   const Stream&) {
    return missing_training();
}
bool casts_both(const CastRule&, const CastRule&) { return false; }
Status cast_both(const CastSource&, const CastRule&, const CastRandom&, const CastRule&, const CastRandom&,
                 const CastBoth&, const Stream&) {
    return missing_training();
}
Status cast_blocks(const CastSource&, const CastRule&, const CastValues&, const Stream&) { return missing_training(); }
Status cast_codes(const CastSource&, const CastRule&, const float*, const CastCodes&, const Stream&) {
    return missing_training();
}
Status eden_values(const CastSource&, const CastRandom&, const CastRandom&, uint64_t, const CastValues&,
                   const Stream&) {
    return missing_training();
}
Status product_scales(const float*, const float*, float, float*, int64_t, const Stream&) { return missing_training(); }
Status see_largest(const std::byte*, int64_t, float*, const Stream&) { return missing_training(); }
Status clear_clipped(const std::byte*, int64_t, const float*, std::byte*, const Stream&) { return missing_training(); }
Status renew_scales(const DelayedScales&, const float*, const Stream&) { return missing_training(); }
Status split_rows(const SplitRows&, const Stream&) { return missing_training(); }
Status add_term(const float*, int64_t, const SplitRows&, float*, const Stream&) { return missing_training(); }
Status add_rows(float*, int64_t, const float*, int64_t, int64_t, const Stream&) { return missing_training(); }
Status add_step(float*, const float*, int64_t, const float*, const Stream&) { return missing_training(); }

// ---- codes_matmul_cuda.h -------------------------------------------------------------------------------------------

Result<CodesPlan> plan_codes_matmul(const CodesShape&, const DeviceInfo&) { return missing_training(); }
Status codes_matmul(const CodesPlan&, const CodesOperand&, const CodesOperand&, void*, bool, std::byte*,
                    const Stream&) {
    return missing_training();
}

// ---- dense_backward_cuda.h ------------------------------------------------------------------------------------------

Result<BackPlan> plan_back_products(const BackShape&, const DeviceInfo&) { return missing_training(); }
Status back_input_gradient(const BackPlan&, const std::byte*, const std::byte*, std::byte*, std::byte*, const Stream&,
                           const BackScale&) {
    return missing_training();
}
Status back_weight_gradient(const BackPlan&, const std::byte*, const std::byte*, float*, bool, std::byte*,
                            const Stream&, const BackScale&) {
    return missing_training();
}

// ---- elementwise_backward_cuda.h ------------------------------------------------------------------------------------

int64_t norm_backward_workspace(int64_t) { return 0; }
Status norm_backward(const NormBackward&, const Stream&) { return missing_training(); }
int64_t column_sums_workspace(int64_t) { return 0; }
Status column_sums(const ColumnSums&, const Stream&) { return missing_training(); }
Status activate_backward(const ActivateBackward&, const Stream&) { return missing_training(); }
Status rope_rows(const RopeRows&, const Stream&) { return missing_training(); }
int64_t rope_backward_workspace(int) { return 0; }
Status rope_backward(const RopeRows&, std::byte*, float*, float*, std::byte*, const Stream&) {
    return missing_training();
}
Status embedding_backward(const EmbeddingBackward&, const Stream&) { return missing_training(); }
Status scale_rows(const std::byte*, int64_t, float, std::byte*, const Stream&) { return missing_training(); }
Status add_one(float*, int64_t, const Stream&) { return missing_training(); }

// ---- lora_cuda.h ----------------------------------------------------------------------------------------------------

Status add_scaled_rows(float*, int64_t, const float*, float, int64_t, int64_t, const Stream&) {
    return missing_training();
}
Status spread_blocks(const AdapterBlocks&, const std::byte*, std::byte*, const Stream&) { return missing_training(); }
Status gather_blocks(const AdapterBlocks&, const float*, float, float*, const Stream&) { return missing_training(); }

// ---- loss_cuda.h ----------------------------------------------------------------------------------------------------

Status label_loss(const LabelLoss&, const Stream&) { return missing_training(); }
Status teacher_loss(const TeacherLoss&, const Stream&) { return missing_training(); }
Status drawn_label_loss(const LabelLoss&, const Drawn&, const Stream&) { return missing_training(); }

// ---- moe_backward_cuda.h --------------------------------------------------------------------------------------------

Status experts_input_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, std::byte*,
                              const Stream&) {
    return missing_training();
}
Status experts_weight_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, float*,
                               const Stream&) {
    return missing_training();
}
Status experts_operands(const ExpertsShape&, const std::byte*, std::byte*, const Stream&) { return missing_training(); }
Status experts_activate_backward(const ExpertsActivateBackward&, const Stream&) { return missing_training(); }
Status weigh_slots(int64_t, int64_t, const int32_t*, const float*, std::byte*, const Stream&) {
    return missing_training();
}
Status route_backward(const RouteBackward&, const Stream&) { return missing_training(); }
Status sum_slots(const SumSlots&, const Stream&) { return missing_training(); }

// ---- optimizer_cuda.h -----------------------------------------------------------------------------------------------

Status add_gradient(float*, const float*, int64_t, const Stream&) { return missing_training(); }
Status sum_gradients(float*, const float*, const float*, int64_t, const Stream&) { return missing_training(); }
Status section_squares(const float*, int64_t, int, int, double*, const Stream&) { return missing_training(); }
Status sum_sections(const double*, int, double*, const Stream&) { return missing_training(); }
Status clip_factor(const double*, double, float*, const Stream&) { return missing_training(); }
Status adamw_update(const AdamW&, const Stream&) { return missing_training(); }
Status adamw_update(const NarrowAdamW&, const Stream&) { return missing_training(); }
int64_t muon_workspace(int64_t, int64_t) { return 0; }
Status muon_update(const Muon&, const Stream&) { return missing_training(); }

// ---- prepare_training_cuda.h ----------------------------------------------------------------------------------------

Status prepare_training(const DeviceInfo&) { return missing_training(); }

// ---- ssm_backward_cuda.h --------------------------------------------------------------------------------------------

bool has_mamba_backward(const MambaShape&) { return false; }
int64_t mamba_backward_workspace(const MambaShape&, int64_t) { return 0; }
Status mamba_backward(const MambaBackward&, const Stream&) { return missing_training(); }
Status mamba_parameters(const MambaShape&, const float*, const float*, float*, float*, const Stream&) {
    return missing_training();
}

}  // namespace nibble::cuda
