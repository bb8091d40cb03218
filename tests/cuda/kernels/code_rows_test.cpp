// Tests norms and activations that write E4M3 codes: codes and scales must be those of quantize_inputs() for the same
// rows in BF16 (which check_inputs() compares with the CPU's).
#include "cuda/device.h"

#include "kernels/elementwise_cuda.h"
#include "kernels/operand_matmul_cuda.h"

#include <functional>

namespace nibble::bench {
namespace {

using Rows = std::function<Status(const cuda::RowsOut&)>;

Result<Check> compare(Kit& kit, std::string name, ActivationFormat format, int64_t tokens, int64_t width,
                      const Rows& make) {
    Check check{std::move(name)};
    const int64_t groups = width / 128, scales = format == ActivationFormat::fp8_token      ? tokens
                                                 : format == ActivationFormat::fp8_group128 ? tokens * groups
                                                                                            : 0;
    const float input_scale = format == ActivationFormat::fp8 ? 0.013f : 1.0f;
    NIBBLE_TRY(std::byte * plain, kit.poisoned(tokens * width * 2));
    NIBBLE_TRY(std::byte * want, kit.poisoned(tokens * width));
    NIBBLE_TRY(float* want_scales, kit.arena.allocate_array<float>(tokens * groups));
    const int64_t bytes = tokens * width + 4 * scales, guard = 256;
    NIBBLE_TRY(std::byte * got, kit.poisoned(bytes + guard));
    NIBBLE_CHECK(make({.data = plain}));
    NIBBLE_CHECK(cuda::quantize_inputs({.format = format,
                                        .x = plain,
                                        .tokens = tokens,
                                        .cols = width,
                                        .input_scale = input_scale,
                                        .out = want,
                                        .scales = want_scales,
                                        .codes = true},
                                       true, kit.stream));
    NIBBLE_CHECK(make({.data = got, .codes = format, .input_scale = input_scale}));
    NIBBLE_TRY(const auto want_codes, kit.download<uint8_t>(want, tokens * width));
    NIBBLE_TRY(const auto got_codes, kit.download<uint8_t>(got, bytes + guard));
    for (int64_t i = 0; i < tokens * width; ++i, ++check.compared)
        if (want_codes[size_t(i)] != got_codes[size_t(i)])
            check.note(fmt::format("token {} column {}", i / width, i % width));
    for (int64_t i = bytes; i < bytes + guard; ++i)
        if (got_codes[size_t(i)] != 0xA5) check.note("wrote past its output");
    if (scales == 0) return check;
    NIBBLE_TRY(const auto one, kit.download<float>(want_scales, scales));
    NIBBLE_TRY(const auto other, kit.download<float>(cuda::scales_after(got, tokens, width), scales));
    for (int64_t i = 0; i < scales; ++i, ++check.compared)
        if (float_bits(one[size_t(i)]) != float_bits(other[size_t(i)])) check.note(fmt::format("scale {}", i));
    return check;
}

Result<std::vector<Check>> check_code_rows(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    for (const ActivationFormat f :
         {ActivationFormat::fp8, ActivationFormat::fp8_token, ActivationFormat::fp8_group128})
        for (const auto& [tokens, width] : {std::pair<int64_t, int64_t>{1, 4096}, {5, 128}, {3, 14336}, {70, 1152}}) {
            const DeviceArena::Mark mark = kit.arena.mark();
            std::vector<uint16_t> rows = kit.normal_bf16(tokens * width, 3.0f);
            std::fill_n(rows.begin(), 128, uint16_t{0});
            NIBBLE_TRY(uint16_t * h, kit.upload(rows));
            NIBBLE_TRY(const float* weight, kit.upload(kit.normal(width, 1.0f)));
            NIBBLE_TRY(Check norm,
                       compare(kit, fmt::format("add_norm {} x {} as {}", tokens, width, activation_name(f)), f, tokens,
                               width, [&](const cuda::RowsOut& out) {
                                   return cuda::add_norm({.tokens = tokens,
                                                          .width = width,
                                                          .h = reinterpret_cast<std::byte*>(h),
                                                          .weight = weight,
                                                          .eps = 1e-5f,
                                                          .out = out},
                                                         true, kit.stream);
                               }));
            results.push_back(std::move(norm));
            if (f != ActivationFormat::fp8_token) {
                std::vector<float> in = kit.normal(tokens * 2 * width, 2.0f);
                std::fill_n(in.begin(), 128, 0.0f);
                NIBBLE_TRY(const float* gates, kit.upload(in));
                NIBBLE_TRY(Check activated,
                           compare(kit, fmt::format("activate {} x {} as {}", tokens, width, activation_name(f)), f,
                                   tokens, width, [&](const cuda::RowsOut& out) {
                                       return cuda::activate(Activation::silu, true, gates, 0, tokens, width, out, true,
                                                             kit.stream);
                                   }));
                results.push_back(std::move(activated));
                const std::vector<uint16_t> rounded = kit.normal_bf16(tokens * 2 * width, 2.0f);
                NIBBLE_TRY(uint16_t * pairs, kit.upload(rounded));
                NIBBLE_TRY(Check rows_activated,
                           compare(kit, fmt::format("activate BF16 {} x {} as {}", tokens, width, activation_name(f)),
                                   f, tokens, width, [&](const cuda::RowsOut& out) {
                                       return cuda::activate(Activation::silu, true,
                                                             reinterpret_cast<const std::byte*>(pairs), tokens, width,
                                                             out, true, kit.stream);
                                   }));
                results.push_back(std::move(rows_activated));
            }
            kit.arena.release(mark);
        }
    return results;
}

}  // namespace

TEST(CudaKernels, CodeRows) { expect_all(check_code_rows(kit())); }

}  // namespace nibble::bench
