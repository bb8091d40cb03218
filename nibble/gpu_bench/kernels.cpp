#include "gpu_bench/kernels.h"

#include "gpu_bench/attention.h"
#include "gpu_bench/attention_backward.h"
#include "gpu_bench/delta.h"
#include "gpu_bench/experts.h"
#include "gpu_bench/fused_decode.h"
#include "gpu_bench/products.h"
#include "kernels/operand_matmul_cuda.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace nibble::bench {
namespace {

using Kernels = KernelBench::Kernels;

constexpr int64_t kernel_memory = int64_t{12}
                                  << 30;  // three copies of 128 experts' weights; a cache of 64 x 32768 tokens

struct ShapePair {
    int64_t first = 0, second = 0;
};

Result<ShapePair> parse_pair(std::string_view text, std::string_view expected) {
    const auto number = [](std::string_view digits, int64_t& value) {
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        return error == std::errc{} && end == digits.data() + digits.size() && value > 0 && value <= 1 << 20;
    };
    ShapePair p;
    const size_t x = text.find('x');
    if (x == text.npos || !number(text.substr(0, x), p.first) || !number(text.substr(x + 1), p.second))
        return fail("--shape {}: expected {}, each 1 to 1048576", text, expected);
    return p;
}

struct KernelJob {
    std::vector<ProductShape> products;
    std::vector<AttentionShape> attention;
    std::vector<AttentionBackwardShape> attention_backward;
    std::vector<ExpertsShape> experts;
    std::vector<int64_t> tokens;
};

Result<KernelJob> plan_job(const KernelBench& o) {
    KernelJob job;
    job.tokens = o.tokens;
    for (const int64_t m : job.tokens)
        if (m < 1 || m > 1 << 16) return fail("--m {}: 1 to 65536 tokens", m);
    const auto formats = product_formats();
    if (!o.format.empty() && std::ranges::find(formats, o.format) == formats.end())
        return fail("bench matmul --device cuda: format '{}': choose one of: {}", o.format, fmt::join(formats, ", "));
    for (const std::string& text : o.shapes) {
        NIBBLE_TRY(const ShapePair p, parse_pair(text, o.kernels == Kernels::attention ? "SEQUENCESxTOKENS" : "NxK"));
        if (o.kernels != Kernels::attention && (p.first % 16 || p.second % 64))
            return fail("--shape {}: N must be a multiple of 16, K of 64", text);
        if (o.kernels == Kernels::matmul && p.second % 256)
            return fail("--shape {}: K must be a multiple of 256", text);
        job.products.push_back({p.first, p.second, o.tokens.empty() ? std::vector<int64_t>{1, 16, 64} : o.tokens});
        job.experts.push_back({p.first, p.second});
        for (const auto type : {cuda::KvType::bf16, cuda::KvType::e4m3})
            job.attention.push_back(
                {.sequences = static_cast<int>(p.first), .tokens = static_cast<int>(p.second), .type = type});
    }
    if (o.shapes.empty()) {
        job.products = target_products();
        for (ProductShape& shape : job.products)
            if (!o.tokens.empty()) shape.tokens = o.tokens;
        job.attention = target_attention(), job.experts = target_experts();
        job.attention_backward = target_attention_backward();
    }
    if (job.tokens.empty()) job.tokens = {1, 8, 64, 512, 2048};
    return job;
}

}  // namespace

Status run_kernel_bench(const KernelBench& o, std::FILE* out) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(o.device).within("--device"));
    if (!choice.cuda) return fail("--device {}: these kernels need a GPU: cuda or cuda:N", o.device);
    NIBBLE_TRY(const KernelJob job, plan_job(o));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    NIBBLE_CHECK(use_device(info.index));
    NIBBLE_TRY(const DeviceMemory free, device_memory(info.index));
    if (free.free < kernel_memory + (int64_t{1} << 30))
        return fail("bench needs 13 GiB of the memory of {}; {:.1f} are free", info.name,
                    static_cast<double>(free.free) / (1 << 30));
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, kernel_memory));
    Kit kit(stream, info, arena, 1);
    NIBBLE_CHECK(cuda::prepare_matmul(info));
    const Vendor vendor = Vendor::open(info);
    NIBBLE_TRY(const MachineRates rates, measure_machine(kit, vendor));
    const std::string_view baseline = o.kernels == Kernels::matmul         ? product_baseline
                                      : o.kernels == Kernels::attention    ? attention_baseline
                                      : o.kernels == Kernels::experts      ? experts_baseline
                                      : o.kernels == Kernels::fused_decode ? fused_decode_baseline
                                                                           : delta_baseline;
    KernelTable table(o.json ? nullptr : out, info, rates, vendor, std::string(baseline));
    switch (o.kernels) {
        case Kernels::matmul:
            NIBBLE_CHECK(bench_products(kit, vendor, job.products, o.format, o.repetitions, table));
            break;
        case Kernels::attention: {
            NIBBLE_TRY(const auto noise, attention_noise(kit));
            NIBBLE_CHECK(bench_attention(kit, job.attention, noise, o.repetitions, table));
            NIBBLE_CHECK(bench_attention_backward(kit, job.attention_backward, noise, o.repetitions, table));
            break;
        }
        case Kernels::experts:
            NIBBLE_CHECK(bench_experts(kit, job.experts, job.tokens, o.repetitions, table));
            break;
        case Kernels::fused_decode:
            NIBBLE_CHECK(bench_fused_decode(kit, o.repetitions, table));
            break;
        case Kernels::delta:
            NIBBLE_CHECK(bench_delta_nets(kit, target_delta_nets(), o.repetitions, table));
            break;
    }
    if (o.json) fmt::print(out, "{}\n", table.json().dump(2));
    if (!table.good()) return fail("kernels of the GPU gave wrong results");
    return Ok{};
}

}  // namespace nibble::bench
