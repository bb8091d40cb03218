// Kernels of training, which the emulated GPU does not have: a trainer can be planned on it, not run.
#include "kernels/attention_backward_cuda.h"
#include "kernels/cache_rows_cuda.h"
#include "kernels/cast_cuda.h"
#include "kernels/codes_product_cuda.h"
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

Error missing() { return fail("the emulated GPU does not have this kernel"); }

}  // namespace

// ---- attention_backward_cuda.h --------------------------------------------------------------------------------------

bool has_attention_backward(int) { return false; }
int64_t attention_backward_workspace(int64_t, int) { return 0; }
Status attention_backward(const AttentionBackward&, const Stream&) { return missing(); }
Status latent_rows(const LatentShape&, const LatentRows&, const Stream&) { return missing(); }
Status latent_backward(const LatentShape&, const LatentBackward&, const Stream&) { return missing(); }
Status latent_join(const LatentJoin&, const Stream&) { return missing(); }

// ---- cache_rows_cuda.h ----------------------------------------------------------------------------------------------

Status round_cache(const RoundCache&, const Stream&) { return missing(); }
Status clear_clipped(const ClearClipped&, const Stream&) { return missing(); }
Status see_cache(const SeeCache&, const Stream&) { return missing(); }

// ---- cast_cuda.h ----------------------------------------------------------------------------------------------------

Status cast_values(const CastSource&, const CastRule&, const CastRandom&, const float*, const CastValues&,
                   const Stream&) {
    return missing();
}
bool casts_both(const CastRule&, const CastRule&) { return false; }
Status cast_both(const CastSource&, const CastRule&, const CastRandom&, const CastRule&, const CastRandom&,
                 const CastBoth&, const Stream&) {
    return missing();
}
Status cast_blocks(const CastSource&, const CastRule&, const CastValues&, const Stream&) { return missing(); }
Status cast_codes(const CastSource&, const CastRule&, const float*, const CastCodes&, const Stream&) {
    return missing();
}
Status eden_values(const CastSource&, const CastRandom&, const CastRandom&, uint64_t, const CastValues&,
                   const Stream&) {
    return missing();
}
Status product_scales(const float*, const float*, float, float*, int64_t, const Stream&) { return missing(); }
Status see_largest(const std::byte*, int64_t, float*, const Stream&) { return missing(); }
Status clear_clipped(const std::byte*, int64_t, const float*, std::byte*, const Stream&) { return missing(); }
Status renew_scales(const DelayedScales&, const float*, const Stream&) { return missing(); }
Status split_rows(const SplitRows&, const Stream&) { return missing(); }
Status add_term(const float*, int64_t, const SplitRows&, float*, const Stream&) { return missing(); }
Status add_rows(float*, int64_t, const float*, int64_t, int64_t, const Stream&) { return missing(); }
Status add_step(float*, const float*, int64_t, const float*, const Stream&) { return missing(); }

// ---- codes_product_cuda.h -------------------------------------------------------------------------------------------

Result<CodesPlan> plan_codes_product(const CodesShape&, const DeviceInfo&) { return missing(); }
Status codes_product(const CodesPlan&, const CodesOperand&, const CodesOperand&, void*, bool, std::byte*,
                     const Stream&) {
    return missing();
}

// ---- dense_backward_cuda.h ------------------------------------------------------------------------------------------

Result<BackPlan> plan_back_products(const BackShape&, const DeviceInfo&) { return missing(); }
Status back_input_gradient(const BackPlan&, const std::byte*, const std::byte*, std::byte*, std::byte*, const Stream&,
                           const BackScale&) {
    return missing();
}
Status back_weight_gradient(const BackPlan&, const std::byte*, const std::byte*, float*, bool, std::byte*,
                            const Stream&, const BackScale&) {
    return missing();
}

// ---- elementwise_backward_cuda.h ------------------------------------------------------------------------------------

int64_t norm_backward_workspace(int64_t) { return 0; }
Status norm_backward(const NormBackward&, const Stream&) { return missing(); }
int64_t column_sums_workspace(int64_t) { return 0; }
Status column_sums(const ColumnSums&, const Stream&) { return missing(); }
Status activate_backward(const ActivateBackward&, const Stream&) { return missing(); }
Status rope_rows(const RopeRows&, const Stream&) { return missing(); }
int64_t rope_backward_workspace(int) { return 0; }
Status rope_backward(const RopeRows&, std::byte*, float*, float*, std::byte*, const Stream&) { return missing(); }
Status embedding_backward(const EmbeddingBackward&, const Stream&) { return missing(); }
Status scale_rows(const std::byte*, int64_t, float, std::byte*, const Stream&) { return missing(); }
Status add_one(float*, int64_t, const Stream&) { return missing(); }

// ---- lora_cuda.h ----------------------------------------------------------------------------------------------------

Status add_scaled_rows(float*, int64_t, const float*, float, int64_t, int64_t, const Stream&) { return missing(); }
Status spread_blocks(const AdapterBlocks&, const std::byte*, std::byte*, const Stream&) { return missing(); }
Status gather_blocks(const AdapterBlocks&, const float*, float, float*, const Stream&) { return missing(); }

// ---- loss_cuda.h ----------------------------------------------------------------------------------------------------

Status label_loss(const LabelLoss&, const Stream&) { return missing(); }
Status teacher_loss(const TeacherLoss&, const Stream&) { return missing(); }
Status drawn_label_loss(const LabelLoss&, const Drawn&, const Stream&) { return missing(); }

// ---- moe_backward_cuda.h --------------------------------------------------------------------------------------------

Status experts_input_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, std::byte*,
                              const Stream&) {
    return missing();
}
Status experts_weight_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, float*,
                               const Stream&) {
    return missing();
}
Status experts_operands(const ExpertsShape&, const std::byte*, std::byte*, const Stream&) { return missing(); }
Status experts_activate_backward(const ExpertsActivateBackward&, const Stream&) { return missing(); }
Status weigh_slots(int64_t, int64_t, const int32_t*, const float*, std::byte*, const Stream&) { return missing(); }
Status route_backward(const RouteBackward&, const Stream&) { return missing(); }
Status sum_slots(const SumSlots&, const Stream&) { return missing(); }

// ---- optimizer_cuda.h -----------------------------------------------------------------------------------------------

Status add_gradient(float*, const float*, int64_t, const Stream&) { return missing(); }
Status sum_gradients(float*, const float*, const float*, int64_t, const Stream&) { return missing(); }
Status section_squares(const float*, int64_t, int, int, double*, const Stream&) { return missing(); }
Status sum_sections(const double*, int, double*, const Stream&) { return missing(); }
Status clip_factor(const double*, double, float*, const Stream&) { return missing(); }
Status adamw_update(const AdamW&, const Stream&) { return missing(); }
Status adamw_update(const NarrowAdamW&, const Stream&) { return missing(); }
int64_t muon_workspace(int64_t, int64_t) { return 0; }
Status muon_update(const Muon&, const Stream&) { return missing(); }

// ---- prepare_training_cuda.h ----------------------------------------------------------------------------------------

Status prepare_training(const DeviceInfo&) { return missing(); }

// ---- ssm_backward_cuda.h --------------------------------------------------------------------------------------------

bool has_mamba_backward(const MambaShape&) { return false; }
int64_t mamba_backward_workspace(const MambaShape&, int64_t) { return 0; }
Status mamba_backward(const MambaBackward&, const Stream&) { return missing(); }
Status mamba_parameters(const MambaShape&, const float*, const float*, float*, float*, const Stream&) {
    return missing();
}

}  // namespace nibble::cuda
