// The twin of kernels/cuda/attention/attention.cpp in a build without CUDA.
#include "kernels/attention_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status append_kv(const KvCache&, const std::byte*, const std::byte*, const int64_t*, int64_t, const Stream&) {
    return absent();
}
Result<AttentionPlan> plan_attention(const AttentionProblem&, const DeviceInfo&) { return absent(); }
KernelChoice describe(const AttentionPlan&) { return {}; }
Result<AttentionWork> attention_work(const AttentionPlan&, std::span<const AttentionSegment>) { return absent(); }
Status attend(const AttentionPlan&, const AttentionInput&, const KvCache&, std::byte*, std::byte*, bool,
              const Stream&) {
    return absent();
}

}  // namespace nibble::cuda
