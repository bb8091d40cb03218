// The twin of kernels/train_cast_cuda.h in a build without CUDA.
#include "kernels/train_cast_cuda.h"

namespace nibble::cuda {

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

}  // namespace nibble::cuda
