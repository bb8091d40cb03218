#include "kernels/moe_backward_cuda.h"

#include "kernels/cuda/moe/moe_backward_launch.h"
#include "kernels/operand_matmul_cuda.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

cudaStream_t moe_queue(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

constexpr int64_t most_blocks = 65535;  // limit of the second dimension of a grid

Status check_experts(const ExpertsShape& s) {
    if (s.experts < 1 || s.experts > 1024 || s.slots < 1 || s.rows < 8 || s.rows % 8 || s.cols < 8 || s.cols % 8 ||
        s.slots / 128 + 1 + s.experts > most_blocks)
        return fail("gradients of {} experts [{}, {}] over {} rows: up to 1024, multiples of 8, some 8 million rows",
                    s.experts, s.rows, s.cols, s.slots);
    return Ok{};
}

ExpertsBackArgs back_args(const ExpertsShape& s, const int32_t* begin, const std::byte* dy, const std::byte* other,
                          void* out) {
    return {.experts = s.experts,
            .slots = s.slots,
            .rows = s.rows,
            .cols = s.cols,
            .begin = begin,
            .dy = dy,
            .other = other,
            .out = out};
}

}  // namespace

Status experts_input_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* w,
                              std::byte* dx, const Stream& stream) {
    NIBBLE_CHECK(check_experts(shape));
    return cuda_status(launch_experts_input_gradient(back_args(shape, begin, dy, w, dx), moe_queue(stream)),
                       "experts_input_gradient: kernel launch");
}

Status experts_weight_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* x,
                               float* dw, const Stream& stream) {
    NIBBLE_CHECK(check_experts(shape));
    return cuda_status(launch_experts_weight_gradient(back_args(shape, begin, dy, x, dw), moe_queue(stream)),
                       "experts_weight_gradient: kernel launch");
}

Status experts_operands(const ExpertsShape& shape, const std::byte* w, std::byte* tiles, const Stream& stream) {
    if (shape.experts < 1 || shape.rows < 1 || shape.cols < 8 || shape.cols % 8)
        return fail("experts_operands: {} of [{}, {}]; columns are multiples of 8", shape.experts, shape.rows,
                    shape.cols);
    if (reinterpret_cast<uintptr_t>(w) % 16 || reinterpret_cast<uintptr_t>(tiles) % 16)
        return fail("experts_operands: device pointers must be 16-byte aligned");
    return cuda_status(launch_experts_operands({.experts = shape.experts,
                                                .rows = shape.rows,
                                                .cols = shape.cols,
                                                .expert_bytes = operand_bytes(shape.rows, shape.cols),
                                                .w = w,
                                                .tiles = tiles},
                                               moe_queue(stream)),
                       "experts_operands: kernel launch");
}

Status experts_activate_backward(const ExpertsActivateBackward& a, const Stream& stream) {
    if (a.slots < 1 || a.width < 8 || a.width % 8)
        return fail("experts_activate_backward: {} rows of {}; widths are multiples of 8", a.slots, a.width);
    return cuda_status(launch_experts_activate_backward({.activation = static_cast<int>(a.activation),
                                                         .gated = a.gated,
                                                         .slots = a.slots,
                                                         .width = a.width,
                                                         .places = a.places,
                                                         .weights = a.weights,
                                                         .in = a.in,
                                                         .d_mid = a.d_mid,
                                                         .d_in = a.d_in,
                                                         .mid = a.mid,
                                                         .d_weights = a.d_weights,
                                                         .plain_mid = a.plain_mid},
                                                        moe_queue(stream)),
                       "experts_activate_backward: kernel launch");
}

Status weigh_slots(int64_t slots, int64_t width, const int32_t* places, const float* weights, std::byte* rows,
                   const Stream& stream) {
    if (slots < 1 || width < 8 || width % 8)
        return fail("weigh_slots: {} rows of {}; widths are multiples of 8", slots, width);
    return cuda_status(launch_weigh_slots(slots, width, places, weights, rows, moe_queue(stream)),
                       "weigh_slots: kernel launch");
}

Status route_backward(const RouteBackward& r, const Stream& stream) {
    const RouterConfig& c = r.config;
    if (r.tokens < 1 || c.experts < 1 || c.experts > 1024 || c.top_k < 1 || c.top_k > 32)
        return fail("route_backward: {} tokens, {} of {} experts", r.tokens, c.top_k, c.experts);
    return cuda_status(launch_route_backward({.count = c.experts,
                                              .top_k = c.top_k,
                                              .sigmoid = c.sigmoid,
                                              .round = c.round,
                                              .normalize = c.normalize,
                                              .scaling = c.scaling,
                                              .smallest_sum = c.smallest_sum,
                                              .tokens = r.tokens,
                                              .logits = r.logits,
                                              .experts = r.experts,
                                              .d_weights = r.d_weights,
                                              .d_logits = reinterpret_cast<uint16_t*>(r.d_logits)},
                                             moe_queue(stream)),
                       "route_backward: kernel launch");
}

Status sum_slots(const SumSlots& s, const Stream& stream) {
    if (s.tokens < 1 || s.width < 8 || s.width % 8 || s.top_k < 0)
        return fail("sum_slots: {} rows of {}; widths are multiples of 8", s.tokens, s.width);
    return cuda_status(launch_sum_slots({.tokens = s.tokens,
                                         .width = s.width,
                                         .top_k = s.top_k,
                                         .places = s.places,
                                         .rows = s.rows,
                                         .more = {s.more[0], s.more[1], s.more[2]},
                                         .out = s.out},
                                        moe_queue(stream)),
                       "sum_slots: kernel launch");
}

}  // namespace nibble::cuda
