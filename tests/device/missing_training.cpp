// Kernels of training, which the emulated GPU does not have: a trainer can be planned on it, not run.
#include "kernels/cache_rows_cuda.h"
#include "kernels/label_loss_cuda.h"
#include "kernels/train_adapters_cuda.h"
#include "kernels/train_cast_cuda.h"
#include "kernels/train_codes_cuda.h"
#include "kernels/train_cuda.h"
#include "kernels/train_latent_cuda.h"
#include "kernels/train_mamba_cuda.h"
#include "kernels/train_moe_cuda.h"
#include "kernels/train_optimizer_cuda.h"

namespace nibble::cuda {

namespace {

Error missing() { return fail("the emulated GPU does not have this kernel"); }

}  // namespace

// ---- train_cuda.h ---------------------------------------------------------------------------------------------------

Status prepare_training(const DeviceInfo&) { return missing(); }
Result<BackPlan> plan_back_products(const BackShape&, const DeviceInfo&) { return missing(); }
Status back_input_gradient(const BackPlan&, const std::byte*, const std::byte*, std::byte*, std::byte*, const Stream&,
                           const BackScale&) {
    return missing();
}
Status back_weight_gradient(const BackPlan&, const std::byte*, const std::byte*, float*, bool, std::byte*,
                            const Stream&, const BackScale&) {
    return missing();
}
int64_t norm_backward_workspace(int64_t) { return 0; }
Status norm_backward(const NormBackward&, const Stream&) { return missing(); }
int64_t column_sums_workspace(int64_t) { return 0; }
Status column_sums(const ColumnSums&, const Stream&) { return missing(); }
Status activate_backward(const ActivateBackward&, const Stream&) { return missing(); }
Status rope_rows(const RopeRows&, const Stream&) { return missing(); }
int64_t rope_backward_workspace(int) { return 0; }
Status rope_backward(const RopeRows&, std::byte*, float*, float*, std::byte*, const Stream&) { return missing(); }
bool has_attention_backward(int) { return false; }
int64_t attention_backward_workspace(int64_t, int) { return 0; }
Status attention_backward(const AttentionBackward&, const Stream&) { return missing(); }
Status label_loss(const LabelLoss&, const Stream&) { return missing(); }
Status teacher_loss(const TeacherLoss&, const Stream&) { return missing(); }
Status embedding_backward(const EmbeddingBackward&, const Stream&) { return missing(); }
Status scale_rows(const std::byte*, int64_t, float, std::byte*, const Stream&) { return missing(); }
Status add_one(float*, int64_t, const Stream&) { return missing(); }
Status add_gradient(float*, const float*, int64_t, const Stream&) { return missing(); }
Status sum_gradients(float*, const float*, const float*, int64_t, const Stream&) { return missing(); }
Status section_squares(const float*, int64_t, int, int, double*, const Stream&) { return missing(); }
Status sum_sections(const double*, int, double*, const Stream&) { return missing(); }
Status clip_factor(const double*, double, float*, const Stream&) { return missing(); }
Status adamw_update(const AdamW&, const Stream&) { return missing(); }

// ---- train_adapters_cuda.h ------------------------------------------------------------------------------------------

namespace {

Error no_adapters() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status add_scaled_rows(float*, int64_t, const float*, float, int64_t, int64_t, const Stream&) { return no_adapters(); }
Status spread_blocks(const AdapterBlocks&, const std::byte*, std::byte*, const Stream&) { return no_adapters(); }
Status gather_blocks(const AdapterBlocks&, const float*, float, float*, const Stream&) { return no_adapters(); }

// ---- train_cast_cuda.h ----------------------------------------------------------------------------------------------

namespace {

Error no_casts() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status cast_values(const CastSource&, const CastRule&, const CastRandom&, const float*, const CastValues&,
                   const Stream&) {
    return no_casts();
}
bool casts_both(const CastRule&, const CastRule&) { return false; }
Status cast_both(const CastSource&, const CastRule&, const CastRandom&, const CastRule&, const CastRandom&,
                 const CastBoth&, const Stream&) {
    return no_casts();
}
Status cast_blocks(const CastSource&, const CastRule&, const CastValues&, const Stream&) { return no_casts(); }
Status cast_codes(const CastSource&, const CastRule&, const float*, const CastCodes&, const Stream&) {
    return no_casts();
}
Status eden_values(const CastSource&, const CastRandom&, const CastRandom&, uint64_t, const CastValues&,
                   const Stream&) {
    return no_casts();
}
Status product_scales(const float*, const float*, float, float*, int64_t, const Stream&) { return no_casts(); }
Status see_largest(const std::byte*, int64_t, float*, const Stream&) { return no_casts(); }
Status clear_clipped(const std::byte*, int64_t, const float*, std::byte*, const Stream&) { return no_casts(); }
Status renew_scales(const DelayedScales&, const float*, const Stream&) { return no_casts(); }
Status split_rows(const SplitRows&, const Stream&) { return no_casts(); }
Status add_term(const float*, int64_t, const SplitRows&, float*, const Stream&) { return no_casts(); }
Status add_rows(float*, int64_t, const float*, int64_t, int64_t, const Stream&) { return no_casts(); }
Status add_step(float*, const float*, int64_t, const float*, const Stream&) { return no_casts(); }

// ---- train_codes_cuda.h ---------------------------------------------------------------------------------------------

namespace {

Error no_codes() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Result<CodesPlan> plan_codes_product(const CodesShape&, const DeviceInfo&) { return no_codes(); }
Status codes_product(const CodesPlan&, const CodesOperand&, const CodesOperand&, void*, bool, std::byte*,
                     const Stream&) {
    return no_codes();
}

// ---- train_latent_cuda.h --------------------------------------------------------------------------------------------

namespace {

Error no_latent_training() { return missing(); }

}  // namespace

Status latent_rows(const LatentShape&, const LatentRows&, const Stream&) { return no_latent_training(); }
Status latent_backward(const LatentShape&, const LatentBackward&, const Stream&) { return no_latent_training(); }
Status latent_join(const LatentJoin&, const Stream&) { return no_latent_training(); }

// ---- train_mamba_cuda.h ---------------------------------------------------------------------------------------------

namespace {

Error no_mamba_training() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

bool has_mamba_backward(const MambaShape&) { return false; }
int64_t mamba_backward_workspace(const MambaShape&, int64_t) { return 0; }
Status mamba_backward(const MambaBackward&, const Stream&) { return no_mamba_training(); }
Status mamba_parameters(const MambaShape&, const float*, const float*, float*, float*, const Stream&) {
    return no_mamba_training();
}

// ---- train_moe_cuda.h -----------------------------------------------------------------------------------------------

namespace {

Error no_moe_training() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status prepare_training_experts(const DeviceInfo&) { return no_moe_training(); }
Status experts_input_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, std::byte*,
                              const Stream&) {
    return no_moe_training();
}
Status experts_weight_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, float*,
                               const Stream&) {
    return no_moe_training();
}
Status experts_operands(const ExpertsShape&, const std::byte*, std::byte*, const Stream&) { return no_moe_training(); }
Status experts_activate_backward(const ExpertsActivateBackward&, const Stream&) { return no_moe_training(); }
Status weigh_slots(int64_t, int64_t, const int32_t*, const float*, std::byte*, const Stream&) {
    return no_moe_training();
}
Status route_backward(const RouteBackward&, const Stream&) { return no_moe_training(); }
Status sum_slots(const SumSlots&, const Stream&) { return no_moe_training(); }

// ---- train_optimizer_cuda.h -----------------------------------------------------------------------------------------

namespace {

Error no_optimizer() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status adamw_update(const NarrowAdamW&, const Stream&) { return no_optimizer(); }
int64_t muon_workspace(int64_t, int64_t) { return 0; }
Status muon_update(const Muon&, const Stream&) { return no_optimizer(); }

// ---- label_loss_cuda.h ----------------------------------------------------------------------------------------------

Status prepare_drawn_labels(const DeviceInfo&) { return missing(); }
Status drawn_label_loss(const LabelLoss&, const Drawn&, const Stream&) { return missing(); }

// ---- cache_rows_cuda.h ----------------------------------------------------------------------------------------------

Status round_cache(const RoundCache&, const Stream&) { return missing(); }
Status clear_clipped(const ClearClipped&, const Stream&) { return missing(); }
Status see_cache(const SeeCache&, const Stream&) { return missing(); }

}  // namespace nibble::cuda
