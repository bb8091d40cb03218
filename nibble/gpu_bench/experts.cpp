#include "gpu_bench/experts.h"

#include "gpu_bench/noise.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/quantize.h"
#include "kernels/w4a16_matmul_cuda.h"

#include <cmath>

namespace nibble::bench {
namespace {

constexpr int draws = 8;  // random choices of the router; launches use them one after another

struct Draw {
    std::vector<int32_t> begin{0}, rows;  // slots sorted by expert, and the token of each slot
    const int32_t *device_begin = nullptr, *device_rows = nullptr;
    int hit = 0;
};

Result<Draw> draw(Kit& kit, const ExpertsShape& s, int64_t tokens) {
    std::vector<std::vector<int32_t>> of(static_cast<size_t>(s.experts));
    for (int64_t t = 0; t < tokens; ++t)
        for (int i = 0; i < s.top_k;) {
            auto& list = of[kit.random() % of.size()];
            if (!list.empty() && list.back() == t) continue;
            list.push_back(static_cast<int32_t>(t)), ++i;
        }
    Draw d;
    for (const auto& list : of) {
        d.rows.insert(d.rows.end(), list.begin(), list.end());
        d.begin.push_back(static_cast<int32_t>(d.rows.size()));
        d.hit += !list.empty();
    }
    NIBBLE_TRY(d.device_begin, kit.upload(d.begin));
    NIBBLE_TRY(d.device_rows, kit.upload(d.rows));
    return d;
}

enum class Kind : uint8_t { bf16, nvfp4, fp8, fp8_tiles };  // fp8_tiles: tiles of 128 x 128 and groups of 1 x 128

bool in_codes(Kind k) { return k == Kind::fp8 || k == Kind::fp8_tiles; }

std::string name_of(Kind k) {
    switch (k) {
        case Kind::bf16:
            return std::string(experts_baseline);
        case Kind::nvfp4:
            return "W4A16 NVFP4 experts";
        case Kind::fp8:
            return "FP8 token experts";
        case Kind::fp8_tiles:
            return "FP8 128x128 experts";
    }
    return {};
}

// Experts in one format: row r of expert e is row e * n + r of one tall matrix of noise. FP8 inputs are codes.
class Experts {
public:
    Experts(Kit& kit, const ExpertsShape& shape, Kind kind)
        : kit_(kit), s_(shape), kind_(kind), nvfp4_(kind == Kind::nvfp4), codes_in_(in_codes(kind)) {}

    Status load();
    Status start(int64_t tokens);
    Status queue(int launch);
    Result<Check> check();
    double hit() const {
        double sum = 0;
        for (const Draw& d : draws_) sum += d.hit;
        return sum / draws;
    }
    int64_t expert_bytes() const { return bytes_; }

private:
    void weights(int64_t row, double* out) const;
    double input(int64_t token, int64_t col) const;
    int64_t groups() const { return (s_.k + 127) / 128; }
    int64_t row_blocks() const { return (s_.n + 127) / 128; }
    // Bytes per row of x.
    int64_t pitch() const { return codes_in_ ? cuda::codes_pitch(s_.k) : 2 * s_.k; }
    Result<std::vector<float>> factors(int64_t count) {
        std::vector<float> all(static_cast<size_t>(count));
        for (float& f : all) f = 0.5f + 0.001f * static_cast<float>(kit_.random() % 1000);
        return all;
    }

    Kit& kit_;
    ExpertsShape s_;
    Kind kind_;
    bool nvfp4_, codes_in_;
    Noise<uint8_t> e4m3_;
    std::vector<float> tile_scales_, input_scales_;
    const float *device_tiles_ = nullptr, *device_inputs_ = nullptr;
    Noise<uint8_t> codes_, scales_;
    Noise<uint16_t> bf16_;
    int64_t bytes_ = 0, slots_ = 0;  // bytes_: per expert
    std::byte *weights_ = nullptr, *x_ = nullptr;
    const float* row_scales_ = nullptr;
    float* y_ = nullptr;
    std::vector<Draw> draws_;
    static constexpr int copies = 3;
    // Offset of x in the noise. A row that equals its own weight would give a sum of one sign, whose rounding error
    // exceeds the tolerance.
    static constexpr int64_t x_at = 1'000'003;
};

Status Experts::load() {
    bytes_ = nvfp4_      ? cuda::packed_bytes(s_.n, s_.k)
             : codes_in_ ? cuda::codes_bytes(s_.n, s_.k)
                         : cuda::operand_bytes(s_.n, s_.k);
    std::normal_distribution<float> normal;
    NIBBLE_TRY(bf16_, Noise<uint16_t>::create(kit_, [&](auto& r) { return bf16_from_float(normal(r)); }));
    NIBBLE_TRY(codes_, Noise<uint8_t>::create(kit_, [](auto& r) { return r(); }));
    NIBBLE_TRY(scales_, Noise<uint8_t>::create(kit_, [](auto& r) { return 1 + r() % 126; }));
    // Below 2 and never NaN.
    NIBBLE_TRY(e4m3_, Noise<uint8_t>::create(kit_, [](auto& r) { return r() & 0xBF; }));
    if (kind_ == Kind::fp8_tiles) {
        NIBBLE_TRY(tile_scales_, factors(s_.experts * row_blocks() * groups()));
        NIBBLE_TRY(device_tiles_, kit_.upload(tile_scales_));
    }
    NIBBLE_TRY(row_scales_, kit_.upload(std::vector<float>(static_cast<size_t>(s_.experts * s_.n), 1.0f)));
    NIBBLE_TRY(weights_, kit_.arena.allocate(bytes_ * s_.experts * copies));
    NIBBLE_CHECK(fill_device(weights_, 0, bytes_ * s_.experts, kit_.stream));
    NIBBLE_TRY(std::byte * plain, kit_.arena.allocate(s_.n * s_.k * 2));
    NIBBLE_TRY(std::byte * scales, kit_.arena.allocate(s_.n * s_.k / 16));
    NIBBLE_TRY(uint32_t * refused, kit_.upload(std::vector<uint32_t>{0}));
    for (int64_t e = 0; e < s_.experts; ++e) {
        std::byte* to = weights_ + e * bytes_;
        const int64_t first = e * s_.n * s_.k;
        if (nvfp4_) {
            NIBBLE_CHECK(codes_.fill(kit_, plain, s_.n * s_.k / 2, first / 2));
            NIBBLE_CHECK(scales_.fill(kit_, scales, s_.n * s_.k / 16, first / 16));
            const QuantView view{Format::nvfp4, s_.n, s_.k, reinterpret_cast<const uint8_t*>(plain),
                                 reinterpret_cast<const uint8_t*>(scales)};
            NIBBLE_CHECK(cuda::prepack(view, 0, {s_.n, s_.k, to}, refused, kit_.stream));
        } else if (codes_in_) {
            NIBBLE_CHECK(e4m3_.fill(kit_, plain, s_.n * s_.k, first));
            const QuantView view{Format::fp8, s_.n, s_.k, reinterpret_cast<const uint8_t*>(plain)};
            NIBBLE_CHECK(cuda::make_codes(view, s_.n, 0, to, kit_.stream));
        } else {
            NIBBLE_CHECK(bf16_.fill(kit_, plain, s_.n * s_.k, first));
            MatrixView view;
            view.dtype = DType::bf16, view.rows = s_.n, view.cols = s_.k, view.data = plain;
            NIBBLE_CHECK(cuda::make_operand(view, s_.n, 0, to, kit_.stream));
        }
    }
    NIBBLE_TRY(const auto count, kit_.download<uint32_t>(refused, 1));
    if (count[0]) return fail("prepack refused {} scales", count[0]);
    return repeat(kit_, weights_, bytes_ * s_.experts, copies);
}

Status Experts::start(int64_t tokens) {
    draws_.clear();
    for (int i = 0; i < draws; ++i) {
        NIBBLE_TRY(Draw d, draw(kit_, s_, tokens));
        draws_.push_back(std::move(d));
    }
    slots_ = tokens * s_.top_k;
    NIBBLE_TRY(x_, kit_.arena.allocate(tokens * pitch()));
    NIBBLE_CHECK(codes_in_ ? e4m3_.fill(kit_, x_, tokens * pitch(), x_at) : bf16_.fill(kit_, x_, tokens * s_.k, x_at));
    if (codes_in_) {
        NIBBLE_TRY(input_scales_, factors(tokens * (kind_ == Kind::fp8 ? 1 : groups())));
        NIBBLE_TRY(device_inputs_, kit_.upload(input_scales_));
    }
    NIBBLE_TRY(y_, kit_.arena.allocate_array<float>(slots_ * s_.n));
    return fill_device(reinterpret_cast<std::byte*>(y_), 0xFF, slots_ * s_.n * 4, kit_.stream);
}

Status Experts::queue(int launch) {
    const Draw& d = draws_[static_cast<size_t>(launch % draws)];
    const std::byte* at = weights_ + launch % copies * bytes_ * s_.experts;
    if (nvfp4_)
        return cuda::grouped_matmul(
            {.x = x_, .rows = d.device_rows, .slots = slots_},
            {.count = s_.experts, .first = {s_.n, s_.k, at}, .row_scales = row_scales_, .begin = d.device_begin},
            {.y = y_}, true, kit_.stream);
    return cuda::grouped_matmul({.x = x_,
                                 .codes = codes_in_,
                                 .tokens = slots_,
                                 .rows = d.device_rows,
                                 .token_scales = kind_ == Kind::fp8 ? device_inputs_ : nullptr,
                                 .group_scales = kind_ == Kind::fp8_tiles ? device_inputs_ : nullptr},
                                {.count = s_.experts,
                                 .first = {.rows = s_.n,
                                           .cols = s_.k,
                                           .tiles = at,
                                           .codes = codes_in_,
                                           .row_scales = codes_in_ && !device_tiles_ ? row_scales_ : nullptr,
                                           .tile_scales = device_tiles_},
                                 .begin = d.device_begin},
                                y_, 0, true, kit_.stream);
}

double Experts::input(int64_t token, int64_t col) const {
    if (!codes_in_) return bf16_to_float(bf16_.at(x_at + token * s_.k + col));
    const int64_t scale = kind_ == Kind::fp8 ? token : token * groups() + col / 128;
    return double{e4m3_to_float(e4m3_.at(x_at + token * pitch() + col))} * input_scales_[size_t(scale)];
}

void Experts::weights(int64_t row, double* out) const {
    if (codes_in_) {
        const int64_t block = row / s_.n * row_blocks() + row % s_.n / 128;
        for (int64_t j = 0; j < s_.k; ++j)
            out[j] = double{e4m3_to_float(e4m3_.at(row * s_.k + j))} *
                     (device_tiles_ ? tile_scales_[size_t(block * groups() + j / 128)] : 1.0f);
        return;
    }
    if (!nvfp4_) {
        for (int64_t j = 0; j < s_.k; ++j) out[j] = bf16_to_float(bf16_.at(row * s_.k + j));
        return;
    }
    QuantMatrix q(Format::nvfp4, 1, s_.k);
    for (int64_t i = 0; i < s_.k / 2; ++i) q.codes[size_t(i)] = codes_.at(row * s_.k / 2 + i);
    for (int64_t i = 0; i < s_.k / 16; ++i) q.block_scales[size_t(i)] = scales_.at(row * s_.k / 16 + i);
    q.tensor_scale = 1.0f;
    std::vector<float> values(static_cast<size_t>(s_.k));
    quantize_kernels().back().decode(q.view(), values.data());  // the reference kernels
    std::copy(values.begin(), values.end(), out);
}

// Checks draw 0: sampled slots, 16 rows each.
Result<Check> Experts::check() {
    NIBBLE_CHECK(queue(0));
    Check check;
    const Draw& d = draws_[0];
    std::vector<double> w(static_cast<size_t>(s_.k));
    for (int64_t i = 0; i < 24; ++i) {
        const int64_t slot = i == 0 ? 0 : i == 1 ? slots_ - 1 : static_cast<int64_t>(kit_.random() % uint64_t(slots_));
        const auto above = std::upper_bound(d.begin.begin(), d.begin.end(), static_cast<int32_t>(slot));
        const int64_t expert = above - d.begin.begin() - 1, token = d.rows[static_cast<size_t>(slot)];
        NIBBLE_TRY(const auto y, kit_.download<float>(y_ + slot * s_.n, s_.n));
        for (int64_t j = 0; j < 16; ++j) {
            const int64_t row = j == 0 ? 0 : j == 1 ? s_.n - 1 : static_cast<int64_t>(kit_.random() % uint64_t(s_.n));
            weights(expert * s_.n + row, w.data());
            double sum = 0, terms = 0;
            for (int64_t c = 0; c < s_.k; ++c) {
                const double term = w[size_t(c)] * input(token, c);
                sum += term, terms += std::abs(term);
            }
            const double error = std::abs(y[size_t(row)] - sum) / terms;
            ++check.compared;
            if (!(error <= (codes_in_ ? 2e-3 : 4e-6)))
                check.note(fmt::format("slot {}, row {} of expert {}: {} instead of {}", slot, row, expert,
                                       y[size_t(row)], sum));
            check.worst = std::max(check.worst, error);
        }
    }
    return check;
}

}  // namespace

std::vector<ExpertsShape> target_experts() { return {{1856, 2688}, {2688, 1856}}; }

Status bench_experts(Kit& kit, const std::vector<ExpertsShape>& shapes, const std::vector<int64_t>& tokens, int repeats,
                     KernelTable& table) {
    NIBBLE_CHECK(cuda::prepare_matmul(kit.device));
    NIBBLE_CHECK(cuda::prepare_grouped_matmul(kit.device));
    for (const ExpertsShape& shape : shapes) {
        std::vector<double> baseline(tokens.size());
        for (const Kind kind : {Kind::bf16, Kind::nvfp4, Kind::fp8, Kind::fp8_tiles}) {
            if (in_codes(kind) && !cuda::multiplies_codes()) continue;
            const DeviceArena::Mark mark = kit.arena.mark();
            Experts experts(kit, shape, kind);
            NIBBLE_CHECK(experts.load());
            for (size_t i = 0; i < tokens.size(); ++i) {
                const DeviceArena::Mark inner = kit.arena.mark();
                NIBBLE_CHECK(experts.start(tokens[i]));
                KernelRow row{name_of(kind),
                              fmt::format("{}x{}, {} of {}", shape.n, shape.k, shape.top_k, shape.experts), tokens[i]};
                NIBBLE_TRY(row.check, experts.check());
                if (row.check.wrong == 0) {
                    NIBBLE_TRY(row.time,
                               time_graph(kit.stream, {24, repeats}, [&](int l) { return experts.queue(l); }));
                }
                if (kind == Kind::bf16) baseline[i] = row.time.us;
                row.fp8 = in_codes(kind);
                const auto rows = static_cast<double>(tokens[i] * shape.top_k);
                row.baseline_us = baseline[i];
                row.bytes = experts.hit() * static_cast<double>(experts.expert_bytes()) +
                            (row.fp8 ? 1.0 : 2.0) * static_cast<double>(tokens[i] * shape.k) +
                            4.0 * rows * static_cast<double>(shape.n);
                row.operations = 2.0 * rows * static_cast<double>(shape.n * shape.k);
                table.add(row);
                kit.arena.release(inner);
            }
            kit.arena.release(mark);
        }
    }
    return Ok{};
}

}  // namespace nibble::bench
