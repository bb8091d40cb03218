#include "kernels/moe_cuda.h"

#include "kernels/cuda/moe/moe_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_tokens = 65535;  // the second dimension of a grid

}  // namespace

Status route(const RouterConfig& c, const float* logits, const float* bias, int64_t tokens, const Routing& out,
             bool overlap, const Stream& stream) {
    if (c.experts < 1 || c.experts > most_experts || c.top_k < 1 || c.top_k > most_top_k || c.groups < 1 ||
        c.groups > 32 || c.experts % c.groups || c.kept_groups < 1 || c.kept_groups > c.groups ||
        c.top_k > c.experts / c.groups * c.kept_groups)
        return fail("route: {} of {} experts in {} of {} groups; up to {} of {} in 32 groups are supported", c.top_k,
                    c.experts, c.kept_groups, c.groups, most_top_k, most_experts);
    if (c.sparse_mixer && (c.top_k > 2 || c.groups > 1 || bias))
        return fail("route: a sparse mixer of {} experts in {} groups", c.top_k, c.groups);
    if (tokens < 1 || tokens > most_tokens) return fail("route: {} tokens, 1 to {} are supported", tokens, most_tokens);
    const RouteArgs args{.logits = logits,
                         .bias = bias,
                         .experts = out.experts,
                         .weights = out.weights,
                         .tokens = tokens,
                         .count = c.experts,
                         .top_k = c.top_k,
                         .groups = c.groups,
                         .kept_groups = c.kept_groups,
                         .scaling = c.scaling,
                         .smallest_sum = c.smallest_sum,
                         .sigmoid = c.sigmoid,
                         .round = c.round,
                         .normalize = c.normalize,
                         .overlap = overlap,
                         .sparse_mixer = c.sparse_mixer,
                         .jitter = c.jitter,
                         .expert_scales = c.expert_scales};
    const SortArgs sort{.experts = out.experts,
                        .begin = out.begin,
                        .rows = out.rows,
                        .places = out.places,
                        .slots = static_cast<int>(tokens * c.top_k),
                        .top_k = c.top_k,
                        .count = c.experts,
                        .overlap = overlap};
    if (sort.slots <= most_sorted_here && c.experts <= most_experts_here)
        return cuda_status(launch_route_and_sort(args, sort, queue_of(stream)), "route: kernel launch");
    NIBBLE_CHECK(cuda_status(launch_route(args, queue_of(stream)), "route: kernel launch"));
    return cuda_status(launch_sort(sort, queue_of(stream)), "route: sort kernel launch");
}

Status combine_experts(const CombineExperts& c, const Routing& routing, bool overlap, const Stream& stream) {
    if (c.tokens < 1 || c.tokens > most_tokens || c.width < 1 || c.width > INT32_MAX || c.top_k < 1 ||
        (c.y_stride && c.y_stride < c.width) || !c.sum == !c.rows)
        return fail("combine_experts: {} tokens of {}, {} experts each; give one output", c.tokens, c.width, c.top_k);
    return cuda_status(launch_combine({.y = c.y,
                                       .weights = routing.weights,
                                       .places = routing.places,
                                       .shared = c.shared,
                                       .shared_gate = c.shared_gate,
                                       .sum = c.sum,
                                       .rows = reinterpret_cast<uint16_t*>(c.rows),
                                       .tokens = c.tokens,
                                       .y_stride = c.y_stride ? c.y_stride : c.width,
                                       .width = static_cast<int>(c.width),
                                       .top_k = c.top_k,
                                       .weighed = c.weighed,
                                       .overlap = overlap},
                                      queue_of(stream)),
                       "combine_experts: kernel launch");
}

Status weigh_inputs(const std::byte* x, int64_t tokens, int64_t width, int top_k, const Routing& routing,
                    std::byte* out, bool overlap, const Stream& stream) {
    if (tokens < 1 || tokens > most_tokens || width < 8 || width % 8 || width > INT32_MAX || top_k < 1)
        return fail("weigh_inputs: {} tokens of {}, a multiple of 8, {} experts each", tokens, width, top_k);
    return cuda_status(launch_weigh({.x = x,
                                     .weights = routing.weights,
                                     .places = routing.places,
                                     .out = out,
                                     .tokens = tokens,
                                     .width = static_cast<int>(width),
                                     .top_k = top_k,
                                     .overlap = overlap},
                                    queue_of(stream)),
                       "weigh_inputs: kernel launch");
}

}  // namespace nibble::cuda
