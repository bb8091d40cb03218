#include "kernels/product_chain_cuda.h"

#include "kernels/cuda/cache_args.h"
#include "kernels/cuda/product_chain_launch.h"
#include "tensor/cuda/call.h"

#include <algorithm>
#include <climits>

namespace nibble::cuda {
namespace {

static_assert(most_chained == product_chain_steps);

bool fits(const ChainedProduct& p, bool takes_codes) {
    const Operand& w = p.w;
    if (!w.codes || w.tile_scales || w.cols < 128 || w.cols % 128 || w.rows < 8 || w.rows % 8 || w.rows > INT_MAX / 2 ||
        w.cols > INT_MAX / 2)
        return false;
    if (p.gated && (!p.activated || w.rows % 16)) return false;
    return (p.x != nullptr) + (p.norm != nullptr) + takes_codes == 1;
}

bool fill(const ProductChain& chain, int multiprocessors, ProductChainArgs& args) {
    if (chain.products.empty() || chain.products.size() > most_chained) return false;
    const ChainedProduct* before = nullptr;
    for (const ChainedProduct& p : chain.products) {
        const bool takes_codes = before && before->activated;
        if (!fits(p, takes_codes)) return false;
        if (takes_codes && before->w.rows / (before->gated ? 2 : 1) != p.w.cols) return false;
        if (p.norm) {
            if (args.width && args.width != p.w.cols) return false;
            if (before && before->w.rows != p.w.cols) return false;
            args.width = static_cast<int>(p.w.cols);
        }
        if (takes_codes) args.step[args.steps - 1].code_scale = p.input_scale;
        args.step[args.steps++] = {.rows = reinterpret_cast<const uint16_t*>(p.x),
                                   .norm = p.norm,
                                   .nonfinite = p.nonfinite,
                                   .tiles = reinterpret_cast<const uint8_t*>(p.w.tiles),
                                   .row_scales = p.w.row_scales,
                                   .bias = p.w.bias,
                                   .y = p.y,
                                   .scale = p.w.scale,
                                   .input_scale = p.input_scale,
                                   .n = static_cast<int>(p.w.rows),
                                   .k = static_cast<int>(p.w.cols),
                                   .groups = static_cast<int>(p.w.cols / 128),
                                   .activated = p.activated,
                                   .gated = p.gated};
        before = &p;
    }
    if (before->activated) return false;  // nobody takes the codes
    args.h = reinterpret_cast<const uint16_t*>(chain.h);
    args.update = chain.update;
    args.h_out = reinterpret_cast<uint16_t*>(chain.h_out);
    args.codes = reinterpret_cast<uint8_t*>(chain.codes);
    args.meet = reinterpret_cast<unsigned long long*>(chain.meet);
    args.activation = static_cast<int>(chain.activation);
    args.eps = chain.eps;
    return shape_product_chain(args, multiprocessors);
}

}  // namespace

bool takes_product_chain(const ProductChain& chain, const DeviceInfo& device) {
    ProductChainArgs args;
    return device.major == 9 && fill(chain, device.multiprocessors, args);
}

int64_t product_chain_code_bytes(const ProductChain& chain) {
    int64_t most = 0;
    for (const ChainedProduct& p : chain.products)
        if (p.activated) most = std::max(most, p.w.rows);
    return most;
}

Status chain_products(const ProductChain& chain, bool overlap, const DeviceInfo& device, const Stream& stream) {
    ProductChainArgs args;
    if (device.major != 9 || !fill(chain, device.multiprocessors, args))
        return fail("chain_products: {} products that have no kernel in one", chain.products.size());
    if (!chain.meet || (args.width && !chain.h) || (product_chain_code_bytes(chain) && !chain.codes))
        return fail("chain_products: no stream, no memory for codes or no word to meet at");
    if (chain.rope) {
        if (!chain.cache || chain.rope->tokens != 1 || chain.rope->qkv != chain.products.back().y)
            return fail("chain_products: no cache for q, k and v, or they are not the last product's");
        NIBBLE_TRY(args.rope, rope_args(*chain.rope, *chain.cache, overlap));
        args.ropes = true;
    }
    args.overlap = overlap;
    return cuda_status(launch_product_chain(args, device.multiprocessors, static_cast<cudaStream_t>(stream.handle())),
                       "chain_products: kernel launch");
}

}  // namespace nibble::cuda
