// The twin of kernels/train_cuda.h in a build without CUDA.
#include "kernels/train_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status prepare_training(const DeviceInfo&) { return absent(); }
Result<BackPlan> plan_back_products(const BackShape&, const DeviceInfo&) { return absent(); }
Status back_input_gradient(const BackPlan&, const std::byte*, const std::byte*, std::byte*, std::byte*, const Stream&,
                           const BackScale&) {
    return absent();
}
Status back_weight_gradient(const BackPlan&, const std::byte*, const std::byte*, float*, bool, std::byte*,
                            const Stream&, const BackScale&) {
    return absent();
}
int64_t norm_backward_workspace(int64_t) { return 0; }
Status norm_backward(const NormBackward&, const Stream&) { return absent(); }
int64_t column_sums_workspace(int64_t) { return 0; }
Status column_sums(const ColumnSums&, const Stream&) { return absent(); }
Status activate_backward(const ActivateBackward&, const Stream&) { return absent(); }
Status rope_rows(const RopeRows&, const Stream&) { return absent(); }
int64_t rope_backward_workspace(int) { return 0; }
Status rope_backward(const RopeRows&, std::byte*, float*, float*, std::byte*, const Stream&) { return absent(); }
bool has_attention_backward(int) { return false; }
int64_t attention_backward_workspace(int64_t, int) { return 0; }
Status attention_backward(const AttentionBackward&, const Stream&) { return absent(); }
Status label_loss(const LabelLoss&, const Stream&) { return absent(); }
Status teacher_loss(const TeacherLoss&, const Stream&) { return absent(); }
Status embedding_backward(const EmbeddingBackward&, const Stream&) { return absent(); }
Status scale_rows(const std::byte*, int64_t, float, std::byte*, const Stream&) { return absent(); }
Status add_one(float*, int64_t, const Stream&) { return absent(); }
Status add_gradient(float*, const float*, int64_t, const Stream&) { return absent(); }
Status sum_gradients(float*, const float*, const float*, int64_t, const Stream&) { return absent(); }
Status section_squares(const float*, int64_t, int, int, double*, const Stream&) { return absent(); }
Status sum_sections(const double*, int, double*, const Stream&) { return absent(); }
Status clip_factor(const double*, double, float*, const Stream&) { return absent(); }
Status adamw_update(const AdamW&, const Stream&) { return absent(); }

}  // namespace nibble::cuda
