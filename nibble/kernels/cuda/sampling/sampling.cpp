#include "kernels/sampling_cuda.h"

#include "kernels/cuda/sampling/sampling_launch.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {

Status sample(const Sampling& s, bool overlap, const Stream& stream) {
    constexpr int64_t most_width = int64_t{1} << 19, most_rows = 1 << 20;
    if (s.rows < 1 || s.rows > most_rows || s.width < 1 || s.width > most_width)
        return fail("sample: {} rows of {} logits, up to {} of {} are supported", s.rows, s.width, most_rows,
                    most_width);
    if (s.scored && !s.round) return fail("sample: scores need rounded logits");
    const SampleArgs args{.logits = s.logits,
                          .requests = s.requests,
                          .seen = s.seen,
                          .out = s.out,
                          .places = s.places,
                          .masks = s.masks,
                          .words = s.words,
                          .words_out = s.words_out,
                          .word_count = s.word_count,
                          .rows = s.rows,
                          .width = s.width,
                          .round = s.round,
                          .overlap = overlap};
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    NIBBLE_CHECK(cuda_status(launch_sample(args, queue), "sample: kernel launch"));
    return s.scored ? cuda_status(launch_score(args, queue), "sample: kernel launch") : Status(Ok{});
}

Status carry_tokens(const CarriedToken* list, int64_t count, const ChosenToken* from, int32_t* tokens,
                    const Stream& stream) {
    if (count == 0) return Ok{};
    return cuda_status(launch_carry(list, count, from, tokens, static_cast<cudaStream_t>(stream.handle())),
                       "carry_tokens: kernel launch");
}

}  // namespace nibble::cuda
