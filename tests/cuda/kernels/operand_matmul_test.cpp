#include "base/thread_pool.h"
#include "cuda/device.h"
#include "kernels/matmul.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

namespace nibble::bench {
namespace {

// Tolerance for a chain of k-steps in FP32, relative to the sum of the terms' magnitudes.
constexpr double bound = 4e-6;
// Four k-steps of the FP8 tensor cores keep about 14 bits of their sum.
constexpr double codes_bound = 2e-3;

struct Case {
    std::string name;
    Format format = Format::none;
    DType plain = DType::bf16;
    ActivationFormat activation = ActivationFormat::none;
    bool bias = false;
    bool codes = false;       // W8A8 on the FP8 tensor cores
    bool row_blocks = false;  // fp8_block128 with scales of 1 x 128
};

class Checker : Kit {
public:
    explicit Checker(const Kit& kit) : Kit(kit) {}
    Result<Check> product(const Case& c, int64_t n, int64_t k, int64_t tokens);
    Result<Check> experts(Format format, int64_t n, int64_t k);

private:
    struct Weight {
        cuda::Operand operand;
        std::vector<float> values, bias;  // effective values
    };
    Result<Weight> weight(const Case& c, int64_t n, int64_t k);
    ThreadPool pool_;
};

Result<Checker::Weight> Checker::weight(const Case& c, int64_t n, int64_t k) {
    Weight w;
    w.operand = {.rows = n, .cols = k};
    const int64_t bytes = c.codes ? cuda::codes_bytes(n, k) : cuda::operand_bytes(n, k);
    NIBBLE_TRY(std::byte * tiles, arena.allocate(bytes));
    NIBBLE_CHECK(fill_device(tiles, 0, bytes, stream));
    w.operand.tiles = tiles;
    w.operand.codes = c.codes;
    const int64_t cut = n / 3;  // the weight is a stack of two parts
    if (c.format == Format::none) {
        std::vector<float> values = normal(n * k, 1.0f);
        std::vector<uint16_t> bits(values.size());
        for (size_t i = 0; i < values.size(); ++i) bits[i] = bf16_from_float(values[i]);
        const std::byte* data = nullptr;
        if (c.plain == DType::bf16) {
            NIBBLE_TRY(data, upload_bytes(bits));
        } else {
            NIBBLE_TRY(data, upload_bytes(values));
        }
        const int64_t row_bytes = k * (c.plain == DType::bf16 ? 2 : 4);
        for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, cut}, {cut, n - cut}}) {
            MatrixView view;
            view.dtype = c.plain, view.rows = count, view.cols = k, view.data = data + begin * row_bytes;
            if (count > 0) NIBBLE_CHECK(cuda::make_operand(view, n, begin, tiles, stream));
        }
        for (float& v : values) v = round_to_bf16(v);
        w.values = std::move(values);
    } else {
        QuantMatrix q(c.format, n, k);
        const FormatLayout layout = format_layout(c.format);
        for (uint8_t& code : q.codes) {
            code = static_cast<uint8_t>(random());
            if (layout.code_bits == 8 && (code & 0x7F) == 0x7F) code = 0x40;  // no NaN
        }
        for (uint8_t& s : q.block_scales)
            s = static_cast<uint8_t>(layout.e8m0_scales ? 120 + random() % 16 : 1 + random() % 126);
        for (float& s : q.float_scales) s = 0.01f + 0.001f * static_cast<float>(random() % 16);
        if (layout.tensor_scale) q.tensor_scale = 0.0123f;
        if (c.row_blocks) std::ranges::fill(q.float_scales, 1.0f);
        QuantView view = q.view();
        w.values.resize(static_cast<size_t>(n * k));
        NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels("ref"));
        kernels->decode(view, w.values.data());
        NIBBLE_TRY(view.codes, upload(q.codes));
        NIBBLE_TRY(view.block_scales, upload(q.block_scales));
        NIBBLE_TRY(const float* scales, upload(q.float_scales));
        view.float_scales = scales;
        NIBBLE_CHECK(c.codes ? cuda::make_codes(view, n, 0, tiles, stream)
                             : cuda::make_operand(view, n, 0, tiles, stream));
        w.operand.scale = q.tensor_scale;
        if (c.format == Format::fp8_row) w.operand.row_scales = scales;
        if (c.format == Format::fp8_block128) w.operand.tile_scales = scales;
        if (c.row_blocks) {
            const int64_t groups = (k + 127) / 128;
            std::vector<float> of_rows(static_cast<size_t>(n * groups));
            for (float& s : of_rows) s = 0.01f + 0.001f * static_cast<float>(random() % 16);
            for (int64_t r = 0; r < n; ++r)
                for (int64_t j = 0; j < k; ++j)
                    w.values[static_cast<size_t>(r * k + j)] *= of_rows[static_cast<size_t>(r * groups + j / 128)];
            NIBBLE_TRY(w.operand.tile_scales, upload(of_rows));
            w.operand.tile_rows = 1;
        }
    }
    if (c.bias) {
        w.bias = normal(n, 1.0f);
        NIBBLE_TRY(w.operand.bias, upload(w.bias));
    }
    return w;
}

Result<Check> Checker::product(const Case& c, int64_t n, int64_t k, int64_t tokens) {
    Check check{fmt::format("product {}{} {}x{}, {} tokens", c.name, c.codes ? " codes" : "", n, k, tokens)};
    const DeviceArena::Mark mark = arena.mark();
    NIBBLE_TRY(const Weight w, weight(c, n, k));
    const int64_t stride = k + 8, groups = (k + 127) / 128;
    std::vector<uint16_t> x = normal_bf16(tokens * stride, 2.0f);
    for (int64_t t = 0; t < tokens; ++t)
        // NaN, which must not be read
        for (int64_t j = k; j < stride; ++j) x[static_cast<size_t>(t * stride + j)] = 0x7FC0;
    NIBBLE_TRY(uint16_t * device_x, upload(x));
    NIBBLE_TRY(std::byte * scales, poisoned(tokens * std::max<int64_t>(groups, 1) * 4));
    cuda::ProductInput in{.x = reinterpret_cast<const std::byte*>(device_x), .tokens = tokens, .stride = stride};
    std::vector<float> factor(static_cast<size_t>(tokens * groups), 1.0f);
    if (c.activation != ActivationFormat::none) {
        const float input_scale = stores_input_scale(c.activation) ? 0.02f : 1.0f;
        cuda::QuantizeInputs q{.format = c.activation,
                               .x = in.x,
                               .tokens = tokens,
                               .cols = k,
                               .stride = stride,
                               .input_scale = input_scale,
                               .out = reinterpret_cast<std::byte*>(device_x),
                               .scales = reinterpret_cast<float*>(scales)};
        if (c.codes) {
            q.codes = in.codes = true;
            NIBBLE_TRY(q.out, poisoned(tokens * cuda::codes_pitch(k)));
            NIBBLE_CHECK(cuda::quantize_inputs(q, false, stream));
            in.x = q.out, in.stride = 0;
            q.codes = false, q.out = reinterpret_cast<std::byte*>(device_x);  // the decoded values, for the reference
        }
        NIBBLE_CHECK(cuda::quantize_inputs(q, false, stream));
        NIBBLE_TRY(x, download<uint16_t>(device_x, tokens * stride));
        in.scale = input_scale;
        std::fill(factor.begin(), factor.end(), input_scale);
        const int64_t each = c.activation == ActivationFormat::fp8_token      ? 1
                             : c.activation == ActivationFormat::fp8_group128 ? groups
                                                                              : 0;
        if (each) {
            NIBBLE_TRY(const auto host, download<float>(scales, tokens * each));
            for (int64_t i = 0; i < tokens * groups; ++i)
                factor[static_cast<size_t>(i)] =
                    host[static_cast<size_t>(c.activation == ActivationFormat::fp8_token ? i / groups : i)];
            (c.activation == ActivationFormat::fp8_token ? in.token_scales : in.group_scales) =
                reinterpret_cast<const float*>(scales);
        }
    }
    const int64_t y_stride = n + 3;
    NIBBLE_TRY(std::byte * y, poisoned((tokens * y_stride + 64) * 4));
    const auto run = [&](const cuda::ProductInput& input, bool overlap) -> Result<std::vector<float>> {
        NIBBLE_CHECK(fill_device(y, poison, (tokens * y_stride + 64) * 4, stream));
        NIBBLE_CHECK(cuda::matmul(input, w.operand, reinterpret_cast<float*>(y), y_stride, overlap, stream));
        NIBBLE_TRY(auto host, download<float>(y, tokens * y_stride + 64));
        for (int64_t i = 0; i < tokens * y_stride + 64; ++i)
            if ((i / y_stride >= input.tokens || i % y_stride >= n) &&
                float_bits(host[static_cast<size_t>(i)]) != 0xA5A5A5A5u)
                return fail("product wrote outside its output, word {}", i);
        return host;
    };
    NIBBLE_TRY(const auto all, run(in, false));
    std::vector<double> worst(static_cast<size_t>(n));
    pool_.parallel_for(n, [&](int64_t r) {
        for (int64_t t = 0; t<tokens; t += tokens> 20 ? 7 : 1) {
            double sum = w.bias.empty() ? 0 : w.bias[static_cast<size_t>(r)], terms = std::abs(sum);
            for (int64_t j = 0; j < k; ++j) {
                const double term = double{w.values[static_cast<size_t>(r * k + j)]} *
                                    bf16_to_float(x[static_cast<size_t>(t * stride + j)]) *
                                    factor[static_cast<size_t>(t * groups + j / 128)];
                sum += term;
                terms += std::abs(term);
            }
            const double distance = std::abs(all[static_cast<size_t>(t * y_stride + r)] - sum) / terms;
            double& here = worst[static_cast<size_t>(r)];
            here = distance <= here ? here : distance;  // keeps NaN
        }
    });
    for (int64_t r = 0; r < n; ++r, check.compared += tokens) {
        const double d = worst[static_cast<size_t>(r)];
        if (!(d <= (c.codes ? codes_bound : bound))) check.note(fmt::format("row {}: {:.2e} of its terms", r, d));
        check.worst = std::max(check.worst, d);
    }
    // Rows that begin at any element, and rows whose 16-byte chunks are aligned.
    for (const int64_t apart : {y_stride, (n + 12) / 8 * 8}) {
        if (!cuda::has_rounded_matmul(w.operand, tokens)) break;
        NIBBLE_CHECK(fill_device(y, poison, (tokens * apart + 64) * 2, stream));
        NIBBLE_CHECK(cuda::rounded_matmul(in, w.operand, y, apart, false, stream));
        NIBBLE_TRY(const auto got, download<uint16_t>(y, tokens * apart + 64));
        for (int64_t i = 0; i < tokens * apart + 64; ++i, ++check.compared) {
            const int64_t token = i / apart, row = i % apart;
            const bool outside = token >= tokens || row >= n;
            const uint16_t want = outside ? 0xA5A5 : bf16_from_float(all[static_cast<size_t>(token * y_stride + row)]);
            if (got[static_cast<size_t>(i)] != want)
                check.note(fmt::format("rounded, {} apart, token {}, row {}", apart, token, row));
        }
    }
    for (const int64_t m : {1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 256, 257}) {
        if (m >= tokens) break;
        const int64_t first = (m * 5) % (tokens - m + 1);
        cuda::ProductInput some = in;
        some.tokens = m;
        some.x += c.codes ? first * cuda::codes_pitch(k) : first * stride * 2;
        if (some.token_scales) some.token_scales += first;
        if (some.group_scales) some.group_scales += first * groups;
        std::vector<int32_t> rows;  // the rows of x in reverse order
        for (int64_t t = 0; t < m; ++t) rows.push_back(static_cast<int32_t>(m - 1 - t));
        const bool backwards = m % 2 && !c.codes;
        if (backwards) {
            NIBBLE_TRY(some.rows, upload(rows));
        }
        NIBBLE_TRY(const auto got, run(some, m % 3 == 0));
        for (int64_t t = 0; t < m; ++t)
            for (int64_t r = 0; r < n; ++r, ++check.compared)
                if (float_bits(got[static_cast<size_t>(t * y_stride + r)]) !=
                    float_bits(all[static_cast<size_t>((first + (backwards ? m - 1 - t : t)) * y_stride + r)]))
                    check.note(fmt::format("m {}, token {} + {}, row {}", m, first, t, r));
    }
    arena.release(mark);
    return check;
}

Result<Check> Checker::experts(Format format, int64_t n, int64_t k) {
    constexpr int count = 37;
    Check check{fmt::format("grouped product {} {}x{}", format == Format::none ? "bf16" : format_name(format), n, k)};
    const DeviceArena::Mark mark = arena.mark();
    const int64_t bytes = cuda::operand_bytes(n, k);
    NIBBLE_TRY(std::byte * tiles, arena.allocate(bytes * count));
    std::vector<float> bias = normal(count * n, 1.0f), scales;
    std::vector<int32_t> begin{0};
    std::vector<float> tile_scales;
    for (int e = 0; e < count; ++e) {
        NIBBLE_TRY(const Weight w, weight({.name = "", .format = format}, n, k));
        NIBBLE_CHECK(copy_on_device(tiles + e * bytes, w.operand.tiles, bytes, stream));
        scales.push_back(0.5f + 0.01f * static_cast<float>(e));
        begin.push_back(begin.back() + (e == 36 ? 70 : e % 5 == 0 ? 0 : e % 7));
        for (int64_t i = 0; i < (n + 127) / 128 * ((k + 127) / 128); ++i)
            tile_scales.push_back(0.01f * static_cast<float>(1 + random() % 9));
    }
    const int64_t slots = begin.back();
    NIBBLE_TRY(const std::byte* x, upload_bytes(normal_bf16(20 * k, 1.0f)));
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < slots; ++i) rows.push_back(static_cast<int32_t>(i * 7 % 20));
    cuda::Experts all{.count = count, .first = {.rows = n, .cols = k, .tiles = tiles}};
    NIBBLE_TRY(all.first.bias, upload(bias));
    NIBBLE_TRY(all.begin, upload(begin));
    NIBBLE_TRY(const float* device_tiles, upload(tile_scales));
    NIBBLE_TRY(all.scales, upload(scales));
    if (format == Format::fp8_block128) all.first.tile_scales = device_tiles, all.scales = nullptr;
    cuda::ProductInput in{.x = x, .tokens = slots};
    NIBBLE_TRY(const int32_t* device_rows, upload(rows));
    in.rows = device_rows;
    NIBBLE_TRY(std::byte * y, poisoned((slots * n + 64) * 4));
    NIBBLE_CHECK(cuda::grouped_matmul(in, all, reinterpret_cast<float*>(y), 0, true, stream));
    NIBBLE_TRY(const auto got, download<float>(y, slots * n + 64));
    for (int64_t i = slots * n; i < slots * n + 64; ++i)
        if (float_bits(got[static_cast<size_t>(i)]) != 0xA5A5A5A5u) check.note("wrote past its output");
    for (int e = 0; e < count; ++e) {
        const int64_t first = begin[static_cast<size_t>(e)], m = begin[static_cast<size_t>(e) + 1] - first;
        if (m == 0) continue;
        cuda::Operand one = all.first;
        one.tiles += e * bytes;
        one.bias += e * n;
        if (one.tile_scales) one.tile_scales += e * ((n + 127) / 128) * ((k + 127) / 128);
        one.scale = scales[static_cast<size_t>(e)];
        cuda::ProductInput own = in;
        own.tokens = m;
        own.rows += first;
        NIBBLE_CHECK(cuda::matmul(own, one, reinterpret_cast<float*>(y), 0, false, stream));
        NIBBLE_TRY(const auto want, download<float>(y, m * n));
        for (int64_t i = 0; i < m * n; ++i, ++check.compared)
            if (float_bits(want[static_cast<size_t>(i)]) != float_bits(got[static_cast<size_t>(first * n + i)]))
                check.note(fmt::format("expert {} of {} rows, word {}", e, m, i));
    }
    arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_products(const Kit& kit, bool small) {
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    Checker checker(kit);
    std::vector<Check> results;
    const auto add = [&](Result<Check> check) -> Status {
        NIBBLE_TRY(auto c, std::move(check));
        results.push_back(std::move(c));
        return Ok{};
    };
    const Case plain{.name = "bf16"};
    const int64_t tokens = small ? 35 : 300;
    NIBBLE_CHECK(add(checker.product(plain, 64, 64, tokens)));
    NIBBLE_CHECK(add(checker.product({.name = "f32", .plain = DType::f32, .bias = true}, 100, 72, tokens)));
    NIBBLE_CHECK(add(checker.product(plain, 8, 8, 9)));
    NIBBLE_CHECK(add(checker.product({.name = "bf16", .bias = true}, 257, 328, tokens)));
    // Few rows: K in chunks, some of them empty or ending inside a block of 64 columns.
    NIBBLE_CHECK(add(checker.product(plain, 128, 2688, tokens)));
    NIBBLE_CHECK(add(checker.product({.name = "bf16", .bias = true}, 250, 1096, tokens)));
    // Several rounds of row tiles.
    if (!small) NIBBLE_CHECK(add(checker.product(plain, 70000, 200, 20)));
    if (!small) NIBBLE_CHECK(add(checker.product(plain, 4096, 4096, 70)));
    if (!small) NIBBLE_CHECK(add(checker.product(plain, 2300, 1000, 600)));
    // Thread blocks with several tiles.
    if (!small) NIBBLE_CHECK(add(checker.product({.name = "bf16", .bias = true}, 4110, 72, 3000)));
    if (!small) NIBBLE_CHECK(add(checker.product(plain, 5000, 264, 1100)));
    using A = ActivationFormat;
    for (const Case& c :
         {Case{"fp8", Format::fp8}, Case{"fp8 W8A8", Format::fp8, DType::bf16, A::fp8, true},
          Case{"fp8 row", Format::fp8_row}, Case{"fp8 row, token", Format::fp8_row, DType::bf16, A::fp8_token, true},
          Case{"fp8 block128", Format::fp8_block128},
          Case{"fp8 block128, group128", Format::fp8_block128, DType::bf16, A::fp8_group128, true},
          Case{"fp8 1x128, group128", Format::fp8_block128, DType::bf16, A::fp8_group128, true, false, true},
          Case{"mxfp8", Format::mxfp8, DType::bf16, A::mxfp8}, Case{"mxfp4", Format::mxfp4, DType::bf16, A::mxfp4},
          Case{"nvfp4", Format::nvfp4}, Case{"nvfp4 W4A4", Format::nvfp4, DType::bf16, A::nvfp4, true}}) {
        NIBBLE_CHECK(add(checker.product(c, 208, 416, small ? 20 : 140)));
        if (c.format == Format::fp8_block128) NIBBLE_CHECK(add(checker.product(c, 300, 200, small ? 20 : 140)));
        if (c.activation == A::fp8_token && !small) NIBBLE_CHECK(add(checker.product(c, 2050, 136, 2100)));
    }
    for (Case c : {Case{"fp8 W8A8", Format::fp8, DType::bf16, A::fp8, true},
                   Case{"fp8 row, token", Format::fp8_row, DType::bf16, A::fp8_token, true},
                   Case{"fp8 block128, group128", Format::fp8_block128, DType::bf16, A::fp8_group128, true}}) {
        c.codes = true;
        NIBBLE_CHECK(add(checker.product(c, 208, 416, small ? 20 : 300)));
        NIBBLE_CHECK(add(checker.product(c, 300, 1160, small ? 20 : 140)));
        NIBBLE_CHECK(add(checker.product(c, 20, 16, 9)));
        // Row counts of every kernel: 32 to 224 per thread block. With four groups of 128 columns scales come through
        // the ring buffer.
        for (const int64_t k : {264, 392})
            for (const int64_t n : {4096, 6144, 7168, 8192, 12288, 14336, 16384, 25000, 28672})
                if (!small && (k == 264 || c.format == Format::fp8_block128))
                    NIBBLE_CHECK(add(checker.product(c, n, k, 70)));
        // Enough rows for tiles of 256 tokens; rows of y are a multiple of four.
        if (!small) NIBBLE_CHECK(add(checker.product(c, 2045, 904, 2041)));
    }
    for (const Format f : {Format::none, Format::nvfp4, Format::fp8_block128})
        NIBBLE_CHECK(add(checker.experts(f, 208, 160)));
    return results;
}

// Compares codes and scales of kernels/quantize_activations.h by their decoded operands.
Result<std::vector<Check>> check_inputs(const Kit& given) {
    Kit kit = given;
    NIBBLE_TRY(const MatmulKernels* ref, select_matmul_kernels("ref"));
    std::vector<Check> results;
    for (const ActivationFormat f : {ActivationFormat::nvfp4, ActivationFormat::fp8, ActivationFormat::fp8_token,
                                     ActivationFormat::fp8_group128, ActivationFormat::mxfp8, ActivationFormat::mxfp4})
        for (const int64_t cols : {32, 96, 416, 2048}) {
            constexpr int64_t tokens = 40;
            Check check{fmt::format("inputs {} {} columns", activation_name(f), cols)};
            const DeviceArena::Mark mark = kit.arena.mark();
            std::vector<uint16_t> x = kit.normal_bf16(tokens * cols, 1.0f);
            for (int64_t i = 0; i < 6 * cols; ++i) x[static_cast<size_t>(i)] = static_cast<uint16_t>(kit.random());
            for (uint16_t& v : x)
                if ((v & 0x7F80) == 0x7F80) v &= 0x3FFF;  // makes it finite
            std::fill_n(x.begin() + 7 * cols, cols, 0);
            NIBBLE_TRY(const std::byte* device_x, kit.upload_bytes(x));
            NIBBLE_TRY(std::byte * out, kit.poisoned(tokens * cols * 2));
            NIBBLE_TRY(std::byte * scales, kit.poisoned(tokens * (cols / 32 + 1) * 4));
            const float input_scale = stores_input_scale(f) ? 0.004f : 1.0f;
            NIBBLE_CHECK(cuda::quantize_inputs({.format = f,
                                                .x = device_x,
                                                .tokens = tokens,
                                                .cols = cols,
                                                .input_scale = input_scale,
                                                .out = out,
                                                .scales = reinterpret_cast<float*>(scales)},
                                               true, kit.stream));
            NIBBLE_TRY(const auto got, kit.download<uint16_t>(out, tokens * cols));
            const int64_t floats = activation_float_scales(f, cols);
            NIBBLE_TRY(const auto got_scales, kit.download<float>(scales, tokens * floats));
            std::vector<uint8_t> codes(static_cast<size_t>(activation_code_bytes(f, cols)));
            std::vector<uint8_t> blocks(static_cast<size_t>(activation_block_scales(f, cols)) + 1);
            std::vector<float> want_scales(static_cast<size_t>(floats) + 1), row(static_cast<size_t>(cols));
            for (int64_t t = 0; t < tokens; ++t) {
                for (int64_t j = 0; j < cols; ++j)
                    row[static_cast<size_t>(j)] = bf16_to_float(x[static_cast<size_t>(t * cols + j)]);
                ref->quantize_row(row.data(), cols, f, input_scale, {codes.data(), blocks.data(), want_scales.data()});
                for (int64_t j = 0; j < floats; ++j, ++check.compared)
                    if (got_scales[static_cast<size_t>(t * floats + j)] != want_scales[static_cast<size_t>(j)])
                        check.note(fmt::format("scale {} of token {}", j, t));
                for (int64_t j = 0; j < cols; ++j, ++check.compared) {
                    const bool fp4 = f == ActivationFormat::nvfp4 || f == ActivationFormat::mxfp4;
                    const auto at = static_cast<size_t>(j);
                    float want = fp4 ? e2m1_to_float(codes[at / 2] >> (j % 2 * 4) & 15) : e4m3_to_float(codes[at]);
                    if (f == ActivationFormat::nvfp4) want *= e4m3_to_float(blocks[at / 16]);
                    if (f == ActivationFormat::mxfp4 || f == ActivationFormat::mxfp8)
                        want *= e8m0_to_float(blocks[at / 32]);
                    const uint16_t bits = got[static_cast<size_t>(t * cols + j)];
                    if (bits != bf16_from_float(want))
                        check.note(
                            fmt::format("token {} column {}: {} instead of {}", t, j, bf16_to_float(bits), want));
                }
            }
            kit.arena.release(mark);
            results.push_back(std::move(check));
        }
    return results;
}

}  // namespace

TEST(CudaKernels, Products) { expect_all(check_products(kit(), extent() != Extent::all)); }

TEST(CudaKernels, Inputs) { expect_all(check_inputs(kit())); }

}  // namespace nibble::bench
