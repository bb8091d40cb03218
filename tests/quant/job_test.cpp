#include "checkpoint/reciprocal.h"
#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::test {
namespace {

const Search four_over_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f};
const Search mse{Search::Kind::multipliers, 0.5f, 1.0f, 0.125f};

std::vector<WeightSpec> all_specs() {
    return {{Format::nvfp4},
            {Format::nvfp4, true, 256, four_over_six},
            {Format::nvfp4, false, 448, mse},
            {Format::fp8},
            {Format::fp8, false, 448, mse},
            {Format::fp8_row},
            {Format::fp8_block128},
            {Format::mxfp4},
            {Format::mxfp8}};
}

struct Outcome {
    std::unique_ptr<FakeExport> out;
    Result<QuantReport> report;
};

Outcome run(const FakeCheckpoint& source, const Plan& plan, int threads, const JobHooks& hooks = {}) {
    const JobOptions options = options_for(plan);
    auto out = std::make_unique<FakeExport>(export_tensors(source, plan, options.scales));
    ThreadPool pool(threads);
    auto report = run_quantize(source, plan, options, *out, pool, hooks);
    return {std::move(out), std::move(report)};
}

Json numbers(const QuantReport& report) {
    Json json = to_json(report);
    json.erase("timing");
    return json;
}

#define NIBBLE_EXPECT_OK(result) ASSERT_TRUE((result).ok()) << (result).error().message()

// If the output stores scales as divisors, tiny weights get a scale with a reciprocal, and block scales compensate.
// Other weights keep their bytes.
TEST(Job, ScalesOfTinyWeightsHaveAReciprocal) {
    for (const WeightSpec& spec : {WeightSpec{Format::nvfp4}, WeightSpec{Format::nvfp4, true, 256, four_over_six}})
        for (const float size : {0x1p-130f, 0x1p-125f, 0x1p-110f, 1.0f}) {
            SCOPED_TRACE(fmt::format("{} {}", to_string(spec), size));
            FakeCheckpoint source;
            source.add("a_proj.weight", {8, 64}, DType::f32);
            for (int64_t i = 0; i < 8 * 64; ++i)
                source.set("a_proj.weight", i, size * static_cast<float>(i % 13 - 6) / 6.0f);
            Plan plan = plan_for(source, spec);
            const Outcome before = run(source, plan, 1);
            for (PlanEntry& entry : plan.entries) entry.least_scale = least_divided_scale;
            const Outcome after = run(source, plan, 1);
            NIBBLE_EXPECT_OK(before.report);
            NIBBLE_EXPECT_OK(after.report);
            const Divisor divisor = divisor_of(after.out->stored[0].tensor_scale);
            EXPECT_GT(divisor.value, 0.0f);
            EXPECT_TRUE(std::isnormal(1.0f / divisor.value));
            const bool tiny = divisor_of(before.out->stored[0].tensor_scale).value == 0.0f;
            EXPECT_EQ(tiny, size < 0x1p-120f);
            if (tiny) {
                const TensorReport& t = after.report->tensors[0];
                EXPECT_LT(t.squared_error, 0.02 * t.squared_weight);
                EXPECT_EQ(t.zeros, before.report->tensors[0].zeros);
            } else {
                EXPECT_TRUE(after.out->stored[0] == before.out->stored[0]);
            }
        }
}

TEST(Job, EqualsQuantizingEachTensorWholeWithTheReferenceKernels) {
    FakeCheckpoint source;
    source.add("a_proj.weight", {300, 6144});
    const auto ref = select_quantize_kernels("ref");
    for (const WeightSpec& spec : all_specs()) {
        // searches of whole tensors are tested below
        if (spec.search.kind != Search::Kind::max && !spec.static_scales) continue;
        SCOPED_TRACE(to_string(spec));
        const Outcome r = run(source, plan_for(source, spec), 2);
        NIBBLE_EXPECT_OK(r.report);
        const MatrixView w{DType::bf16, 300, 6144, source.plain[0].data()};
        const float g = (*ref)->scan(w).amax;
        QuantMatrix q(spec.format, 300, 6144);
        // tiles of a matrix without group have no lower limit
        const TensorAmax amax{g, spec.format == Format::fp8_block128 ? 0 : g};
        q.tensor_scale = tensor_scale(spec, amax);
        QuantStats stats;
        (*ref)->quantize(w, spec, amax, q.span(), stats);
        (*ref)->measure(w, q.view(), stats);
        const Stored& s = r.out->stored[0];
        EXPECT_EQ(s.codes, q.codes);
        EXPECT_EQ(s.block_scales, q.block_scales);
        EXPECT_EQ(s.float_scales, q.float_scales);
        EXPECT_EQ(s.tensor_scale, q.tensor_scale);
        const TensorReport& t = r.report->tensors[0];
        EXPECT_EQ(t.amax, g);
        EXPECT_EQ(t.raised_blocks, stats.raised_blocks);
        EXPECT_EQ(t.zeros, stats.zeros);
        EXPECT_EQ(t.saturated, stats.saturated);
        EXPECT_EQ(t.max_error, stats.max_error);
        EXPECT_EQ(t.codes, Histogram(stats.codes));
        EXPECT_EQ(t.scales, Histogram(stats.scales));
        EXPECT_NEAR(t.squared_error, stats.squared_error, 1e-12 * stats.squared_error);
        EXPECT_DOUBLE_EQ(t.bits_per_element() * 300 * 6144 / 8, static_cast<double>(t.stored_bytes));
    }
}

TEST(Job, BytesAndReportDoNotDependOnTheNumberOfThreads) {
    FakeCheckpoint source;
    add_small_model(source);
    for (const WeightSpec& spec : all_specs()) {
        SCOPED_TRACE(to_string(spec));
        const Plan plan = small_plan(source, spec);
        const Outcome one = run(source, plan, 1);
        NIBBLE_EXPECT_OK(one.report);
        for (int threads : {2, 3, 7}) {
            const Outcome many = run(source, plan, threads);
            NIBBLE_EXPECT_OK(many.report);
            EXPECT_TRUE(many.out->stored == one.out->stored) << threads;
            EXPECT_EQ(numbers(*many.report), numbers(*one.report)) << threads;
        }
    }
}

TEST(Job, WritesEveryRowOfEveryTensorOnceAndReleasesItsPages) {
    FakeCheckpoint source;
    add_small_model(source);
    const Plan plan = small_plan(source, {Format::nvfp4});
    const Outcome r = run(source, plan, 3);
    NIBBLE_EXPECT_OK(r.report);
    int64_t rows = 0;
    for (const Stored& s : r.out->stored)
        for (int n : s.row_writes) {
            EXPECT_EQ(n, 1);
            ++rows;
        }
    EXPECT_EQ(source.rows_done, rows);
}

TEST(Job, CarriedTensorsKeepEveryByte) {
    FakeCheckpoint source;
    add_small_model(source);
    source.set("model.embed_tokens.weight", 17, std::nanf(""));  // not quantized, so it is not checked
    const Outcome r = run(source, small_plan(source, {Format::nvfp4}), 2);
    NIBBLE_EXPECT_OK(r.report);
    for (size_t i = 0; i < source.tensors().size(); ++i) {
        if (r.report->tensors[i].quantized()) continue;
        const auto& from = source.plain[i];
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(from.data()), from.size()),
                  std::string(r.out->stored[i].plain.begin(), r.out->stored[i].plain.end()));
    }
}

TEST(Job, FusedLinearsShareTheLargestTensorScale) {
    FakeCheckpoint source;
    for (const char* name : {"q_proj.weight", "k_proj.weight", "o_proj.weight"}) source.add(name, {16, 32});
    source.set("q_proj.weight", 3, 5.0f);
    source.set("k_proj.weight", 3, 9.0f);
    source.set("o_proj.weight", 3, 99.0f);
    for (const WeightSpec& spec : {WeightSpec{Format::nvfp4}, WeightSpec{Format::nvfp4, true, 256, four_over_six}}) {
        Plan plan = plan_for(source, spec);
        group(plan, &PlanEntry::scale_group, {"q_proj.weight", "k_proj.weight"});
        const Outcome r = run(source, plan, 2);
        NIBBLE_EXPECT_OK(r.report);
        EXPECT_EQ(r.out->stored[0].tensor_scale, tensor_scale(spec, {9, 9}));
        EXPECT_EQ(r.out->stored[1].tensor_scale, tensor_scale(spec, {9, 9}));
        EXPECT_EQ(r.out->stored[2].tensor_scale, tensor_scale(spec, {99, 99}));
        EXPECT_EQ(r.report->tensors[0].amax, 5);
    }
}

TEST(Job, ASearchOverATensorChoosesTheFirstMultiplierOfLeastLoss) {
    FakeCheckpoint source;
    source.add("a_proj.weight", {300, 6144});
    const auto kernels = select_quantize_kernels();
    for (const Format format : {Format::fp8, Format::nvfp4}) {
        const WeightSpec spec{format, false, 448, mse};
        const Outcome r = run(source, plan_for(source, spec), 2);
        NIBBLE_EXPECT_OK(r.report);
        const MatrixView w{DType::bf16, 300, 6144, source.plain[0].data()};
        const float g = (*kernels)->scan(w).amax;
        const auto multipliers = search_multipliers(mse);
        std::vector<double> losses(multipliers.size());
        (*kernels)->tensor_losses(w, spec, {g, g}, multipliers, losses);
        const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin();
        EXPECT_EQ(r.report->tensors[0].search_multiplier, multipliers[static_cast<size_t>(best)]);
        const float found = g * multipliers[static_cast<size_t>(best)];
        EXPECT_EQ(r.out->stored[0].tensor_scale, tensor_scale(spec, {found, found}));
    }
}

// All weights except one are on the grid of a scale that is 7/8 of the maximum's; that one is clipped and does not
// become NaN.
TEST(Job, WeightsBeyondASearchedFp8ScaleSaturate) {
    for (const char* kernels : {"ref", "avx2", "avx512"}) {
        const auto found = select_quantize_kernels(kernels);
        if (!found.ok()) continue;  // not supported by this CPU
        FakeCheckpoint source;
        source.add("a_proj.weight", {16, 256});
        for (int64_t i = 0; i < 16 * 256; ++i) source.set("a_proj.weight", i, i == 77 ? -1.0f : 0.875f);
        const Plan plan = plan_for(source, {Format::fp8, false, 448, mse});
        JobOptions options = options_for(plan);
        options.kernels = *found;
        FakeExport out(export_tensors(source, plan, options.scales));
        ThreadPool pool(1);
        const auto report = run_quantize(source, plan, options, out, pool, {});
        NIBBLE_EXPECT_OK(report);
        EXPECT_EQ(report->tensors[0].search_multiplier, 0.875f);
        EXPECT_EQ(out.stored[0].codes[77], 0xFE);  // -448
        EXPECT_EQ(out.stored[0].codes[78], 0x7E);
    }
}

TEST(Job, NamesTensorAndIndexOfTheFirstWeightThatIsNotFinite) {
    for (const Format format : {Format::nvfp4, Format::mxfp4, Format::fp8_row}) {
        FakeCheckpoint source;
        add_small_model(source);
        source.set("model.layers.0.mlp.down_proj.weight", 384 * 5 + 6, -INFINITY);
        source.set("model.layers.0.mlp.down_proj.weight", 384 * 9 + 1, NAN);
        source.set("model.wide_proj.weight", 6144 * 299 + 7, NAN);
        const Plan plan = small_plan(source, {format});
        for (int threads : {1, 2, 7}) {
            const Outcome r = run(source, plan, threads);
            ASSERT_FALSE(r.report.ok());
            EXPECT_TRUE(
                r.report.error().message().starts_with("model.layers.0.mlp.down_proj.weight[5, 6] is -infinity"))
                << r.report.error().message();
        }
        source.set("model.layers.0.mlp.down_proj.weight", 384 * 5 + 6, 0);
        source.set("model.layers.0.mlp.down_proj.weight", 384 * 9 + 1, 0);
        const Outcome r = run(source, plan, 3);
        ASSERT_FALSE(r.report.ok());
        EXPECT_TRUE(r.report.error().message().starts_with("model.wide_proj.weight[299, 7] is NaN"))
            << r.report.error().message();
    }
}

TEST(Job, F16AndF32SourcesGiveTheBytesOfTheSameWeightsInBf16) {
    FakeCheckpoint bf16, f16, f32;
    bf16.add("a_proj.weight", {128, 64});
    f16.add("a_proj.weight", {128, 64}, DType::f16);
    f32.add("a_proj.weight", {128, 64}, DType::f32);
    for (int64_t i = 0; i < 128 * 64; ++i) {
        const float v = static_cast<float>(i % 251 - 125) / 128;  // exact in all three formats
        for (FakeCheckpoint* source : {&bf16, &f16, &f32}) source->set("a_proj.weight", i, v);
    }
    for (const WeightSpec& spec : all_specs()) {
        const Outcome want = run(bf16, plan_for(bf16, spec), 1);
        NIBBLE_EXPECT_OK(want.report);
        for (const FakeCheckpoint* source : {&f16, &f32}) {
            const Outcome got = run(*source, plan_for(*source, spec), 1);
            NIBBLE_EXPECT_OK(got.report);
            EXPECT_TRUE(got.out->stored == want.out->stored) << to_string(spec);
            EXPECT_EQ(got.report->tensors[0].squared_error, want.report->tensors[0].squared_error);
        }
    }
}

TEST(Job, QuantizedSourcesAreCarriedOrDecodedFirst) {
    const auto kernels = select_quantize_kernels("ref");
    FakeCheckpoint plain;
    plain.add("a_proj.weight", {256, 256});
    const MatrixView w{DType::bf16, 256, 256, plain.plain[0].data()};
    const WeightSpec tiles{Format::fp8_block128};
    QuantMatrix q(tiles.format, 256, 256);
    QuantStats ignored;
    (*kernels)->quantize(w, tiles, {}, q.span(), ignored);

    FakeCheckpoint source;
    source.add_quantized("kept.weight", q, 0.5f);
    source.add_quantized("a_proj.weight", q);
    const Outcome r = run(source, plan_for(source, {Format::nvfp4}), 2);
    NIBBLE_EXPECT_OK(r.report);
    EXPECT_EQ(r.out->stored[0].codes, q.codes);
    EXPECT_EQ(r.out->stored[0].float_scales, q.float_scales);
    EXPECT_EQ(r.out->stored[0].input_scale, 0.5f);
    EXPECT_FALSE(r.report->tensors[0].quantized());

    FakeCheckpoint decoded;
    decoded.add("a_proj.weight", {256, 256});
    std::vector<float> values(256 * 256);
    (*kernels)->decode(q.view(), values.data());
    for (int64_t i = 0; i < 256 * 256; ++i) decoded.set("a_proj.weight", i, values[static_cast<size_t>(i)]);
    const Outcome want = run(decoded, plan_for(decoded, {Format::nvfp4}), 2);
    EXPECT_TRUE(r.out->stored[1] == want.out->stored[0]);
}

TEST(Job, ReportReadsBackFromItsJson) {
    FakeCheckpoint source;
    add_small_model(source);
    const Outcome r = run(source, small_plan(source, {Format::nvfp4, true, 256, four_over_six}), 2);
    NIBBLE_EXPECT_OK(r.report);
    const auto text = to_json(*r.report).dump();
    const auto back = quant_report_from_json(*parse_json(text));
    NIBBLE_EXPECT_OK(back);
    EXPECT_TRUE(back->tensors == r.report->tensors);
    EXPECT_EQ(to_json(*back).dump(), text);
    EXPECT_EQ(parse_json(to_json_text(*r.report))->dump(), text);
    const ReportTotals totals = r.report->totals();
    EXPECT_EQ(totals.tensors, static_cast<int64_t>(source.tensors().size()));
    EXPECT_GT(totals.sqnr_db, 10);
    EXPECT_LT(totals.quantized_bits_per_element, 4.6);
}

TEST(Job, AHundredThousandTinyTensorsWork) {
    constexpr int count = 100'000;  // the experts of one large model; anything quadratic would exceed the time limit
    FakeCheckpoint source;
    for (int i = 0; i < count; ++i)
        source.add("experts." + std::to_string(i) + (i % 2 ? ".up_proj.weight" : ".bias"), {2, 16});
    const Outcome r = run(source, plan_for(source, {Format::nvfp4}), 3);
    NIBBLE_EXPECT_OK(r.report);
    EXPECT_EQ(r.report->totals().quantized_tensors, count / 2);
    EXPECT_EQ(r.report->tensors[count - 1].name, "experts.99999.up_proj.weight");
    EXPECT_EQ(r.report->tensors[count - 1].codes.total(), 32);
}

TEST(Job, RefusesAPlanOfAnotherCheckpointAndShapesThatDoNotFit) {
    FakeCheckpoint source, other;
    source.add("a_proj.weight", {16, 24});
    other.add("b_proj.weight", {16, 24});
    EXPECT_FALSE(run(source, plan_for(other, {Format::fp8}), 1).report.ok());
    const Outcome r = run(source, plan_for(source, {Format::nvfp4}), 1);
    ASSERT_FALSE(r.report.ok());
    EXPECT_NE(r.report.error().message().find("a_proj.weight: shape [16, 24]"), std::string::npos);
}

TEST(Job, ReportsProgressFromZeroToTheTotal) {
    FakeCheckpoint source;
    add_small_model(source);
    int64_t last = 0, total = 0;
    JobHooks hooks;
    hooks.progress = [&](const Progress& p) {
        EXPECT_GE(p.done, last);
        last = p.done;
        total = p.total;
    };
    NIBBLE_EXPECT_OK(run(source, small_plan(source, {Format::nvfp4}), 3, hooks).report);
    EXPECT_EQ(last, total);
    int64_t bytes = 0;
    for (const CheckpointTensor& t : source.tensors()) bytes += t.stored_bytes;
    EXPECT_EQ(total, bytes);
}

// 1.5 * 2^127 and above round to 2^128, which FP32 cannot represent. The error must name the weight.
TEST(Job, WeightsThatRoundBeyondFp32AreNamed) {
    for (const Format format : {Format::mxfp4, Format::mxfp8}) {
        FakeCheckpoint source;
        source.add("a_proj.weight", {4, 64});
        source.set("a_proj.weight", 3, 3.38e38f);
        const Outcome r = run(source, plan_for(source, {format}), 1);
        ASSERT_FALSE(r.report.ok()) << format_name(format);
        EXPECT_NE(r.report.error().message().find("rounds to 2^128"), std::string::npos) << r.report.error().message();
        EXPECT_EQ(r.report.error().message().find("defect"), std::string::npos) << r.report.error().message();
    }
}

}  // namespace
}  // namespace nibble::test
