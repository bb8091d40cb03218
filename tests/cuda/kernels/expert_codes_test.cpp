// Tests experts as codes on the FP8 tensor cores: every tile of tokens against the dense product of the same expert's
// codes, bit for bit, and against double precision.
#include "base/thread_pool.h"
#include "cuda/device.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

// Four k-steps of the FP8 tensor cores keep about 14 bits of their sum.
constexpr double bound = 2e-3;
constexpr int experts = 37;
constexpr int64_t inputs = 50;  // rows of x that slots share

struct Case {
    Format format = Format::fp8;
    ActivationFormat activation = ActivationFormat::fp8;
    int64_t n = 0, k = 0;
    bool bias = false;
};

class CodedExperts : Kit {
public:
    CodedExperts(const Kit& kit, const Case& c) : Kit(kit), c_(c), groups_((c.k + 127) / 128) {}
    // `averages`: mean rows per expert.
    Result<Check> run(const std::vector<int64_t>& averages);

private:
    struct Inputs {
        std::vector<uint8_t> codes;  // [rows, codes_pitch]
        std::vector<float> scales;   // [rows, per_row]
        cuda::ProductInput device;
    };
    Status make_weights();
    // Converts BF16 rows to codes and scales, on host and device.
    Result<Inputs> quantize(const std::vector<uint16_t>& x, int64_t rows, const int32_t* begin);
    Status slots(Check& check, int64_t average);
    void against_double(Check& check, const Inputs& in, const std::vector<int32_t>& begin,
                        const std::vector<int32_t>& rows, const std::vector<float>& got);

    Case c_;
    int64_t groups_;
    ThreadPool pool_;
    cuda::Experts all_;
    int64_t bytes_ = 0;                       // per expert
    std::vector<std::vector<float>> values_;  // decoded, by expert
    std::vector<float> bias_, input_scales_;
    const float* device_input_scales_ = nullptr;
    bool gathered() const { return c_.activation != ActivationFormat::fp8; }
    int64_t per_row() const {
        return c_.activation == ActivationFormat::fp8_group128 ? groups_
               : c_.activation == ActivationFormat::fp8        ? 0
                                                               : 1;
    }
};

Status CodedExperts::make_weights() {
    bytes_ = cuda::codes_bytes(c_.n, c_.k);
    NIBBLE_TRY(std::byte * tiles, arena.allocate(bytes_ * experts));
    NIBBLE_CHECK(fill_device(tiles, 0, bytes_ * experts, stream));
    NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels("ref"));
    std::vector<float> scales;  // per row or tile of all experts, or per expert
    for (int64_t e = 0; e < experts; ++e) {
        QuantMatrix q(c_.format, c_.n, c_.k);
        for (uint8_t& code : q.codes) {
            code = static_cast<uint8_t>(random());
            if ((code & 0x7F) == 0x7F) code = 0x40;  // no NaN
        }
        for (float& s : q.float_scales) s = 0.01f + 0.001f * static_cast<float>(random() % 16);
        if (c_.format == Format::fp8) q.tensor_scale = 0.01f + 0.001f * static_cast<float>(random() % 16);
        QuantView view = q.view();
        values_.emplace_back(static_cast<size_t>(c_.n * c_.k));
        kernels->decode(view, values_.back().data());
        const DeviceArena::Mark mark = arena.mark();
        NIBBLE_TRY(view.codes, upload(q.codes));
        NIBBLE_CHECK(cuda::make_codes(view, c_.n, 0, tiles + e * bytes_, stream));
        NIBBLE_CHECK(stream.synchronize());
        arena.release(mark);
        input_scales_.push_back(0.02f + 0.001f * static_cast<float>(e % 5));
        if (c_.format == Format::fp8) scales.push_back(input_scales_.back() * q.tensor_scale);
        for (const float s : q.float_scales) scales.push_back(gathered() ? s : input_scales_.back() * s);
    }
    all_ = {.count = experts, .first = {.rows = c_.n, .cols = c_.k, .tiles = tiles, .codes = true}};
    NIBBLE_TRY(const float* device_scales, upload(scales));
    (c_.format == Format::fp8       ? all_.scales
     : c_.format == Format::fp8_row ? all_.first.row_scales
                                    : all_.first.tile_scales) = device_scales;
    if (c_.bias) {
        bias_ = normal(experts * c_.n, 1.0f);
        NIBBLE_TRY(all_.first.bias, upload(bias_));
    }
    NIBBLE_TRY(device_input_scales_, upload(input_scales_));
    return Ok{};
}

Result<CodedExperts::Inputs> CodedExperts::quantize(const std::vector<uint16_t>& x, int64_t rows,
                                                    const int32_t* begin) {
    Inputs in;
    const int64_t pitch = cuda::codes_pitch(c_.k);
    NIBBLE_TRY(const std::byte* device_x, upload_bytes(x));
    NIBBLE_TRY(std::byte * codes, poisoned(rows * pitch));
    NIBBLE_TRY(std::byte * scales, poisoned(rows * groups_ * 4));
    cuda::QuantizeInputs q{.format = c_.activation,
                           .x = device_x,
                           .tokens = rows,
                           .cols = c_.k,
                           .out = codes,
                           .scales = reinterpret_cast<float*>(scales),
                           .codes = true};
    if (!gathered()) q.experts = experts, q.begin = begin, q.expert_scales = device_input_scales_;
    NIBBLE_CHECK(cuda::quantize_inputs(q, false, stream));
    NIBBLE_TRY(in.codes, download<uint8_t>(codes, rows * pitch));
    NIBBLE_TRY(in.scales, download<float>(scales, rows * per_row()));
    in.device = {.x = codes, .codes = true, .tokens = rows};
    (c_.activation == ActivationFormat::fp8_group128 ? in.device.group_scales : in.device.token_scales) =
        per_row() ? reinterpret_cast<const float*>(scales) : nullptr;
    return in;
}

void CodedExperts::against_double(Check& check, const Inputs& in, const std::vector<int32_t>& begin,
                                  const std::vector<int32_t>& rows, const std::vector<float>& got) {
    const int64_t slots = begin.back(), pitch = cuda::codes_pitch(c_.k);
    std::vector<double> worst(static_cast<size_t>(slots));
    pool_.parallel_for(slots, [&](int64_t i) {
        const auto e = static_cast<int64_t>(std::ranges::upper_bound(begin, i) - begin.begin()) - 1;
        const int64_t source = gathered() ? rows[size_t(i)] : i;
        for (int64_t r = i % 5; r<c_.n; r += slots> 500 ? 17 : 5) {
            double sum = c_.bias ? bias_[size_t(e * c_.n + r)] : 0.0, terms = std::abs(sum);
            for (int64_t j = 0; j < c_.k; ++j) {
                const double scale = !per_row()       ? input_scales_[size_t(e)]
                                     : per_row() == 1 ? in.scales[size_t(source)]
                                                      : in.scales[size_t(source * groups_ + j / 128)];
                const double term = double{values_[size_t(e)][size_t(r * c_.k + j)]} * scale *
                                    e4m3_to_float(in.codes[size_t(source * pitch + j)]);
                sum += term, terms += std::abs(term);
            }
            const double d = std::abs(got[size_t(i * c_.n + r)] - sum) / terms;
            worst[size_t(i)] = d <= worst[size_t(i)] ? worst[size_t(i)] : d;  // keeps NaN
        }
    });
    for (int64_t i = 0; i < slots; ++i, ++check.compared) {
        if (!(worst[size_t(i)] <= bound)) check.note(fmt::format("slot {}: {:.2e} of its terms", i, worst[size_t(i)]));
        check.worst = std::max(check.worst, worst[size_t(i)]);
    }
}

// Gives experts about `average` rows: some have none, one has many.
Status CodedExperts::slots(Check& check, int64_t average) {
    const DeviceArena::Mark mark = arena.mark();
    std::vector<int32_t> begin{0}, rows;
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t own = e == 36      ? 5 * average + 1
                            : e % 5 == 0 ? 0
                                         : 1 + static_cast<int64_t>(random() % uint64_t(2 * average));
        begin.push_back(begin.back() + static_cast<int32_t>(own));
    }
    const int64_t count = begin.back(), pitch = cuda::codes_pitch(c_.k), stride = c_.n + 5;
    for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(random() % inputs));
    std::vector<uint16_t> x = normal_bf16(inputs * c_.k, 1.0f), sorted;
    for (const int32_t row : rows) sorted.insert(sorted.end(), x.begin() + row * c_.k, x.begin() + (row + 1) * c_.k);
    cuda::Experts all = all_;
    NIBBLE_TRY(all.begin, upload(begin));
    NIBBLE_TRY(const int32_t* device_rows, upload(rows));
    NIBBLE_TRY(const Inputs in, gathered() ? quantize(x, inputs, nullptr) : quantize(sorted, count, all.begin));
    cuda::ProductInput given = in.device;
    given.tokens = count;
    if (gathered()) given.rows = device_rows;
    const int64_t words = count * stride + 64;
    NIBBLE_TRY(std::byte * y, poisoned(words * 4));
    NIBBLE_CHECK(cuda::grouped_matmul(given, all, reinterpret_cast<float*>(y), stride, average % 2 == 0, stream));
    NIBBLE_TRY(const auto strided, download<float>(y, words));
    std::vector<float> got;
    for (int64_t i = 0; i < words; ++i) {
        if (i < count * stride && i % stride < c_.n)
            got.push_back(strided[size_t(i)]);
        else if (float_bits(strided[size_t(i)]) != 0xA5A5A5A5u)
            check.note(fmt::format("wrote outside its output, word {}", i));
    }
    // Sorted rows of codes, because the dense product does not gather.
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t from = gathered() ? rows[size_t(i)] : i, each = per_row();
        codes.insert(codes.end(), in.codes.begin() + from * pitch, in.codes.begin() + (from + 1) * pitch);
        scales.insert(scales.end(), in.scales.begin() + from * each, in.scales.begin() + (from + 1) * each);
    }
    scales.push_back(0.0f);
    NIBBLE_TRY(const std::byte* sorted_codes, upload_bytes(codes));
    NIBBLE_TRY(const float* sorted_scales, upload(scales));
    std::vector<float> expert_scales(experts);
    if (all.scales) {
        NIBBLE_TRY(expert_scales, download<float>(all.scales, experts));
    }
    NIBBLE_TRY(float* one_y, arena.allocate_array<float>(count * c_.n));
    for (int64_t e = 0; e < experts; ++e) {
        const int64_t first = begin[size_t(e)], m = begin[size_t(e) + 1] - first;
        if (m == 0) continue;
        cuda::Operand one = all.first;
        one.tiles += e * bytes_;
        if (one.bias) one.bias += e * c_.n;
        if (one.row_scales) one.row_scales += e * c_.n;
        if (one.tile_scales) one.tile_scales += e * ((c_.n + 127) / 128) * groups_;
        if (all.scales) one.scale = expert_scales[size_t(e)];
        cuda::ProductInput own{.x = sorted_codes + first * pitch, .codes = true, .tokens = m};
        if (in.device.token_scales) own.token_scales = sorted_scales + first;
        if (in.device.group_scales) own.group_scales = sorted_scales + first * groups_;
        NIBBLE_CHECK(cuda::matmul(own, one, one_y + first * c_.n, 0, false, stream));
    }
    NIBBLE_TRY(const auto want, download<float>(one_y, count * c_.n));
    for (int64_t i = 0; i < count * c_.n; ++i, ++check.compared)
        if (float_bits(got[size_t(i)]) != float_bits(want[size_t(i)]))
            check.note(fmt::format("about {} rows: slot {} row {}: {} instead of {}", average, i / c_.n, i % c_.n,
                                   got[size_t(i)], want[size_t(i)]));
    // The same rows, sorted beforehand.
    cuda::ProductInput again{.x = sorted_codes, .codes = true, .tokens = count};
    if (in.device.token_scales) again.token_scales = sorted_scales;
    if (in.device.group_scales) again.group_scales = sorted_scales;
    NIBBLE_CHECK(fill_device(y, poison, words * 4, stream));
    NIBBLE_CHECK(cuda::grouped_matmul(again, all, reinterpret_cast<float*>(y), 0, true, stream));
    NIBBLE_TRY(const auto second, download<float>(y, count * c_.n));
    for (int64_t i = 0; i < count * c_.n; ++i, ++check.compared)
        if (float_bits(second[size_t(i)]) != float_bits(want[size_t(i)]))
            check.note(fmt::format("about {} rows, sorted: word {}", average, i));
    against_double(check, in, begin, rows, got);
    arena.release(mark);
    return Ok{};
}

Result<Check> CodedExperts::run(const std::vector<int64_t>& averages) {
    Check check{fmt::format("experts as codes {}, {} {}x{}", format_name(c_.format), activation_name(c_.activation),
                            c_.n, c_.k)};
    const DeviceArena::Mark mark = arena.mark();
    NIBBLE_CHECK(make_weights());
    for (const int64_t average : averages) NIBBLE_CHECK(slots(check, average));
    arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_expert_codes(const Kit& kit, bool small) {
    std::vector<Check> results;
    if (!cuda::multiplies_codes()) return results;
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    using A = ActivationFormat;
    std::vector<Case> cases{{Format::fp8, A::fp8, 208, 416, true},
                            {Format::fp8_row, A::fp8_token, 208, 160},
                            {Format::fp8_row, A::fp8_token, 100, 72, true},
                            {Format::fp8_row, A::fp8, 20, 16},
                            {Format::fp8_block128, A::fp8_group128, 256, 1160, true},
                            {Format::fp8_block128, A::fp8_group128, 300, 200}};
    // Shares that end inside a block of rows; several rounds.
    if (!small) cases.push_back({Format::fp8_block128, A::fp8_group128, 640, 768});
    if (!small) cases.push_back({Format::fp8, A::fp8, 700, 904, true});
    for (const Case& c : cases) {
        // Covers every tile of tokens: 8, 16, 32, 64, 128.
        NIBBLE_TRY(auto check, CodedExperts(kit, c).run({1, 3, 8, 18, 40, 70}));
        results.push_back(std::move(check));
    }
    return results;
}

}  // namespace

TEST(CudaKernels, ExpertCodes) { expect_all(check_expert_codes(kit(), extent() != Extent::all)); }

}  // namespace nibble::bench
