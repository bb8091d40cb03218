#include "kernels/quantize.h"

#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/quantize_cpu.h"
#include "kernels/ref/quantize_ref.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace nibble {
namespace {

constexpr int most_multipliers = 1024;

// Returns the number that the user wrote: the shortest decimal that reads back as `x`. The count of candidates then
// equals Python's; with the nearest float it could be one off (0.1f is slightly more than 0.1).
double as_written(float x) {
    const std::string decimal = fmt::format("{}", x);
    double value = x;
    std::from_chars(decimal.data(), decimal.data() + decimal.size(), value);
    return value;
}

double multiplier_count(const Search& s) {
    return std::ceil((as_written(s.stop) - as_written(s.start)) / as_written(s.step)) + 1;
}

bool is_nvfp4(Format format) { return format == Format::nvfp4 || format == Format::nvfp4_bs32; }

bool always() { return true; }

constexpr QuantizeKernels entries[] = {
#if defined(__x86_64__)
    cpu::entry<cpu::rows_avx512>("avx512", cpu::has_avx512),
    cpu::entry<cpu::rows_avx2>("avx2", cpu::has_avx2),
#endif
    {"ref", always, ref::scan, ref::quantize, ref::tensor_losses, ref::decode, ref::measure},
};

}  // namespace

std::vector<float> search_multipliers(const Search& search) {
    if (search.kind != Search::Kind::multipliers) return {1.0f};
    const int n = static_cast<int>(multiplier_count(search));
    if (n < 2) return {search.start};
    // torch.linspace counts from the nearer end.
    const float step = (search.stop - search.start) / static_cast<float>(n - 1);
    std::vector<float> m(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i)
        m[size_t(i)] = i < n / 2 ? search.start + step * static_cast<float>(i)
                                 : search.stop - step * static_cast<float>(n - 1 - i);
    return m;
}

std::string to_string(const WeightSpec& spec) {
    std::string text(format_name(spec.format));
    if (spec.static_scales) text += fmt::format(" static/{}", spec.normalization);
    if (spec.search.kind == Search::Kind::sweep) text += " sweep";
    if (spec.search.kind == Search::Kind::multipliers) {
        const auto m = search_multipliers(spec.search);
        text += m.size() <= 4 ? fmt::format(" x{{{}}}", fmt::join(m, ","))
                              : fmt::format(" x{{{},{}..{}}}", m[0], m[1], m.back());
    }
    if (spec.arithmetic == Arithmetic::true_division) text += " true";
    return text;
}

Status check(const WeightSpec& spec) {
    const auto bad = [&](std::string_view why) { return fail("weight format {}: {}", format_name(spec.format), why); };
    const Search& s = spec.search;
    if (spec.format == Format::none) return bad("nothing to quantize to");
    if (spec.weights != DType::bf16 && spec.weights != DType::f16 && spec.weights != DType::f32)
        return bad(fmt::format("weights of {} are not quantized", dtype_name(spec.weights)));
    if (spec.static_scales && spec.format != Format::nvfp4) return bad("only nvfp4 has static block scales");
    if (spec.normalization != 448.0f && spec.normalization != 256.0f)
        return bad(fmt::format("normalization {} is neither 448 nor 256", spec.normalization));
    if (spec.normalization == 256.0f && !spec.static_scales)
        return bad("normalization 256 (four-over-six) needs static block scales");
    if (s.kind == Search::Kind::sweep && !(spec.static_scales && spec.normalization == 448.0f))
        return bad("the scale sweep needs nvfp4 with static block scales and normalization 448");
    if (s.kind == Search::Kind::multipliers) {
        if (spec.format == Format::mxfp4 || spec.format == Format::mxfp8 || spec.format == Format::nvfp4_bs32 ||
            spec.format == Format::int4)
            return bad("scales of this format follow from the block maximum: no multiplier search");
        if (!std::isfinite(s.start) || !std::isfinite(s.stop) || !(s.start > 0) || !(s.stop >= s.start) ||
            !(s.step > 0))
            return bad(fmt::format("multipliers need 0 < start <= stop and step > 0, found {} {} {}", s.start, s.stop,
                                   s.step));
        if (const double n = multiplier_count(s); !(n <= most_multipliers))
            return bad(fmt::format("{} multipliers are more than {}", n, most_multipliers));
    }
    return Ok{};
}

float tensor_scale(const WeightSpec& spec, const TensorAmax& amax) {
    if (is_nvfp4(spec.format)) return nvfp4_tensor_scale(amax.store, spec.normalization, spec.arithmetic);
    if (spec.format == Format::fp8) return fp8_scale(amax.store, spec.arithmetic);
    return 1.0f;
}

QuantStats& QuantStats::operator+=(const QuantStats& other) {
    elements += other.elements;
    blocks += other.blocks;
    squared_error += other.squared_error;
    squared_weight += other.squared_weight;
    // std::max would lose NaN.
    if (!(other.max_error <= max_error)) max_error = std::isnan(max_error) ? max_error : other.max_error;
    zeros += other.zeros;
    saturated += other.saturated;
    sign_flips += other.sign_flips;
    raised_blocks += other.raised_blocks;
    for (size_t i = 0; i < codes.size(); ++i) codes[i] += other.codes[i];
    for (size_t i = 0; i < scales.size(); ++i) scales[i] += other.scales[i];
    return *this;
}

std::span<const QuantizeKernels> quantize_kernels() { return entries; }

Result<const QuantizeKernels*> select_quantize_kernels(std::string_view force) {
    std::string choices;
    for (const QuantizeKernels& k : entries) {
        const bool supported = k.supported();
        if (supported && (force.empty() || force == k.name)) return &k;
        if (supported) choices += fmt::format("{}{}", choices.empty() ? "" : ", ", k.name);
    }
    return fail("quantize kernels '{}': unknown or not supported by this CPU, choose one of: {}", force, choices);
}

}  // namespace nibble
