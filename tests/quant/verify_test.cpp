#include "quant/verify.h"

#include "quant/content_hash.h"
#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble::test {
namespace {

const std::string layer = "model.layers.0.";

// A source, its plan, and a correct export; tests break one thing and expect exactly that finding.
struct Fixture {
    FakeCheckpoint source, out;
    Plan plan;
    ExpectedFormats expected;
    QuantReport report;

    explicit Fixture(WeightSpec spec = {Format::nvfp4}) {
        add_small_model(source, 1, false);
        plan = small_plan(source, spec);
        for (PlanEntry& e : plan.entries)
            if (e.spec.format == Format::nvfp4) e.activation = ActivationFormat::nvfp4;
        JobOptions options = options_for(plan);
        for (size_t i = 0; i < plan.entries.size(); ++i)
            if (plan.entries[i].activation != ActivationFormat::none) options.scales.input[i] = 0.25f;
        FakeExport stored(export_tensors(source, plan, options.scales));
        ThreadPool pool(2);
        auto result = run_quantize(source, plan, options, stored, pool, {});
        if (!result.ok()) throw std::runtime_error(result.error().message());
        report = *std::move(result);
        reopen(stored, out);
        expected = expected_formats(plan);
    }

    VerifyReport verify(bool with_source = true, bool with_plan = true) {
        ThreadPool pool(3);
        auto result = nibble::verify(
            out, {.source = with_source ? &source : nullptr, .expected = with_plan ? &expected : nullptr}, pool, {});
        if (!result.ok()) throw std::runtime_error(result.error().message());
        return *std::move(result);
    }
    std::vector<Finding> findings(bool with_source = true, bool with_plan = true) {
        return verify(with_source, with_plan).findings;
    }
};

using Findings = std::vector<Finding>;

TEST(Verify, AGoodExportHasNoFindingsAndTheLossesOfTheReport) {
    for (const Format format :
         {Format::nvfp4, Format::fp8, Format::fp8_row, Format::fp8_block128, Format::mxfp4, Format::mxfp8}) {
        SCOPED_TRACE(format_name(format));
        Fixture f({format});
        const VerifyReport v = f.verify();
        EXPECT_EQ(v.findings, Findings{});
        for (size_t i = 0; i < v.tensors.size(); ++i) {
            EXPECT_EQ(v.tensors[i].squared_error, f.report.tensors[i].squared_error);
            EXPECT_EQ(v.tensors[i].codes, f.report.tensors[i].codes);
            EXPECT_EQ(v.tensors[i].scales, f.report.tensors[i].scales);
            EXPECT_EQ(v.tensors[i].max_error, f.report.tensors[i].max_error);
        }
        EXPECT_NE(to_text(v).find("nothing wrong"), std::string::npos);
        EXPECT_EQ(to_json(v)["passed"], true);
        EXPECT_EQ(f.findings(false, false), Findings{});
    }
}

TEST(Verify, NamesInvalidBlockScales) {
    const std::string name = layer + "mlp.down_proj.weight";
    for (const auto& [byte, text] : {std::pair<int, std::string>{0x7F, "block scales are NaN"},
                                     {0xFF, "block scales are NaN"},
                                     {0x00, "block scales are zero"},
                                     {0xB8, "block scales are negative"}}) {
        Fixture f;
        f.out.matrix(name).block_scales[24 * 7 + 3] = static_cast<uint8_t>(byte);
        f.out.matrix(name).block_scales[24 * 9] = static_cast<uint8_t>(byte);
        EXPECT_EQ(f.findings(false), (Findings{{name, "2 " + text + ", the first in row 7"}}));
    }
    Fixture mx({Format::mxfp4});
    mx.out.matrix(name).block_scales[12 * 5] = 0xFF;
    EXPECT_EQ(mx.findings(false), (Findings{{name, "1 block scales are NaN, the first in row 5"}}));
}

TEST(Verify, NamesNanCodesAndInvalidFloatScales) {
    const std::string name = layer + "self_attn.o_proj.weight";
    Fixture f({Format::fp8_row});
    f.out.matrix(name).codes[256 * 3 + 1] = 0x7F;
    f.out.matrix(name).float_scales[11] = std::numeric_limits<float>::infinity();
    f.out.matrix(name).float_scales[20] = 0;
    EXPECT_EQ(f.findings(false), (Findings{{name, "1 codes are NaN, the first in row 3"},
                                           {name, "2 scales are not finite and positive, the first in row 11"}}));
    for (const float bad : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
        Fixture g;
        g.out.matrix(name).tensor_scale = bad;
        g.out.tensor(name).input_scale = bad;
        const auto found = g.findings(false);
        ASSERT_EQ(found.size(), 2u);
        EXPECT_EQ(found[0].text, fmt::format("input_scale {} is not finite and positive", bad));
        EXPECT_EQ(found[1].text, fmt::format("tensor scale {} is not finite and positive", bad));
    }
}

TEST(Verify, ComparesFusedLinears) {
    const std::string q = layer + "self_attn.q_proj.weight", up = layer + "mlp.up_proj.weight";
    {
        Fixture f;
        f.out.matrix(q).tensor_scale *= 1.5f;
        const auto found = f.findings(false);
        ASSERT_EQ(found.size(), 1u);
        EXPECT_NE(found[0].tensor.find("q_proj"), std::string::npos);
        EXPECT_EQ(found[0].text, "must have one tensor scale (weight_scale_2), because engines run them as one matrix");
    }
    {
        Fixture f;
        f.out.tensor(up).input_scale = 0.5f;
        const auto found = f.findings(false);
        ASSERT_EQ(found.size(), 1u);
        EXPECT_EQ(found[0].text, "must have one input scale, because they have the same input");
    }
    {
        Fixture f({Format::fp8});  // each has its own scale; engines quantize them again
        EXPECT_EQ(f.findings(false), Findings{});
    }
}

TEST(Verify, FindsMissingAndExtraTensorsAndWrongShapes) {
    Fixture f;
    f.out.remove(layer + "input_layernorm.weight");
    EXPECT_EQ(f.findings(), (Findings{{layer + "input_layernorm.weight", "is missing; the source has it"}}));

    Fixture g;
    g.out.add("extra.weight", {3});
    EXPECT_EQ(g.findings(), (Findings{{"extra.weight", "is not in the source"}}));

    Fixture h;
    h.source.tensor("model.embed_tokens.weight").shape = {17000, 32};
    EXPECT_EQ(h.findings(),
              (Findings{{"model.embed_tokens.weight", "shape [17000, 64] differs from the source's [17000, 32]"}}));
}

TEST(Verify, ATensorAgainstTheRecipeIsAFinding) {
    const std::string name = layer + "mlp.down_proj.weight";
    Fixture f;
    const std::vector<uint8_t> zeros(64 * 384 * 4);
    f.out.remove(name);
    f.out.add_plain(name, {64, 384}, DType::f32, zeros);
    const auto found = f.findings(false);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].text, "is stored as F32, the recipe says nvfp4");

    Fixture g;
    g.expected.erase(name);
    EXPECT_EQ(g.findings(), (Findings{{name, "is stored as nvfp4, the recipe says unquantized"}}));
}

TEST(Verify, AWrongScaleIsFoundByItsLargeError) {
    const std::string name = layer + "mlp.down_proj.weight";
    Fixture f;
    f.out.matrix(name).tensor_scale *= 4;
    const auto found = f.findings();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].tensor, name);
    EXPECT_TRUE(found[0].text.starts_with("decodes to other weights than the source's: SQNR -")) << found[0].text;
    EXPECT_EQ(f.findings(false), Findings{});  // cannot be detected without the source
}

TEST(Verify, CarriedTensorsMustBeTheSourcesBytes) {
    const std::string name = "model.embed_tokens.weight";
    Fixture f;
    f.source.set(name, 64 * 16999 + 1, 123);
    EXPECT_EQ(
        f.findings(),
        (Findings{
            {name, "1 rows differ from the source, though the tensor is not quantized, the first in row 16999"}}));
    Fixture g;
    for (FakeCheckpoint* c : {&g.source, &g.out}) c->set(name, 5, NAN);
    EXPECT_EQ(g.findings(), Findings{});  // the source has it too
    EXPECT_EQ(g.findings(false), (Findings{{name, "1 values are not finite, the first in row 0"}}));
}

TEST(Verify, KvScalesMustBeCompleteAndPositive) {
    const auto scale = [](float x) {
        std::vector<uint8_t> bytes(4);
        std::memcpy(bytes.data(), &x, 4);
        return bytes;
    };
    Fixture f;
    f.out.kv_ = KvFormat::fp8;
    f.out.add_plain(layer + "self_attn.k_proj.k_scale", {}, DType::f32, scale(1));
    EXPECT_EQ(f.findings(),
              (Findings{{layer + "self_attn.v_proj.v_scale", "is missing; other layers have their KV cache scales"}}));
    f.out.add_plain(layer + "self_attn.v_proj.v_scale", {}, DType::f32, scale(-1));
    EXPECT_EQ(f.findings(), (Findings{{layer + "self_attn.v_proj.v_scale", "-1 is not finite and positive"}}));
}

TEST(Verify, ExpectedFormatsSurviveTheManifest) {
    Fixture f;
    const auto back = expected_formats_from_json(*parse_json(to_json(f.expected).dump()));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, f.expected);
    EXPECT_FALSE(expected_formats_from_json(Json{{"x", {{"format", "int3"}, {"activation", "none"}}}}).ok());
}

TEST(Verify, WideSourcesInTilesAreReadInWholeTiles) {
    QuantMatrix tiles(Format::fp8_block128, 256, 16384);  // panels of NVFP4 would have 64 rows
    std::fill(tiles.codes.begin(), tiles.codes.end(), uint8_t{0x38});
    std::fill(tiles.float_scales.begin(), tiles.float_scales.end(), 1.0f);
    FakeCheckpoint source, out;
    source.add_quantized("a_proj.weight", tiles);
    const Plan plan = plan_for(source, {Format::nvfp4});
    const JobOptions options = options_for(plan);
    FakeExport stored(export_tensors(source, plan, options.scales));
    ThreadPool pool(2);
    const auto report = run_quantize(source, plan, options, stored, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    reopen(stored, out);
    const auto verified = verify(out, {.source = &source}, pool, {});
    ASSERT_TRUE(verified.ok()) << verified.error().message();
    EXPECT_EQ(verified->findings, Findings{});
    EXPECT_EQ(verified->tensors[0].squared_error, report->tensors[0].squared_error);
    EXPECT_EQ(verified->tensors[0].squared_weight, 256.0 * 16384);
}

// The check at the end of `quantize`: the export is compared with the computed report, and a single different bit is a
// finding.
TEST(Verify, EveryChangeOfComputedCodesAndScalesIsFound) {
    const std::string name = layer + "mlp.down_proj.weight";
    for (const Format format :
         {Format::nvfp4, Format::fp8, Format::fp8_row, Format::fp8_block128, Format::mxfp4, Format::mxfp8}) {
        SCOPED_TRACE(format_name(format));
        Fixture f({format});
        const auto findings = [&] {
            ThreadPool pool(3);
            const auto result =
                verify(f.out, {.source = &f.source, .expected = &f.expected, .computed = &f.report.tensors}, pool, {});
            EXPECT_TRUE(result.ok());
            return result->findings;
        };
        EXPECT_EQ(findings(), Findings{});
        const Findings changed{{name, "the stored codes and scales are not those that were computed"}};
        const QuantMatrix good = f.out.matrix(name);
        QuantMatrix& stored = f.out.matrix(name);
        for (const size_t at : {size_t{0}, good.codes.size() / 2, good.codes.size() - 1}) {
            stored.codes[at] ^= 1;
            EXPECT_EQ(findings(), changed) << at;
            stored = good;
        }
        if (!good.block_scales.empty()) {
            stored.block_scales.back() ^= 1;
            EXPECT_EQ(findings(), changed);
            stored = good;
        }
        if (!good.float_scales.empty()) {
            stored.float_scales.back() = std::nextafter(good.float_scales.back(), 1e9f);
            EXPECT_EQ(findings(), changed);
            stored = good;
        }
        std::rotate(stored.codes.begin(), stored.codes.begin() + code_bytes(format, 1, good.cols), stored.codes.end());
        EXPECT_EQ(findings(), changed) << "rows in another order";
        stored = good;
        if (format_layout(format).tensor_scale) {
            stored.tensor_scale = std::nextafter(good.tensor_scale, 1.0f);
            const Findings found = findings();
            ASSERT_FALSE(found.empty());
            EXPECT_NE(found[0].text.find("is not the one that was computed"), std::string::npos) << found[0].text;
        }
    }
}

TEST(Verify, ContentHashDoesNotDependOnPanels) {
    for (const Format format : {Format::nvfp4, Format::fp8_row, Format::fp8_block128, Format::mxfp8, Format::int4}) {
        QuantMatrix m(format, 300, 256);
        uint8_t next = 1;
        for (auto* bytes : {&m.codes, &m.block_scales})
            for (uint8_t& b : *bytes) b = next = static_cast<uint8_t>(next * 5 + 3);
        for (float& s : m.float_scales) s = static_cast<float>(next = static_cast<uint8_t>(next * 5 + 3));
        uint64_t sum = 0;
        for (int64_t row = 0; row < 300; row += 128)
            sum += content_hash(std::as_const(m).view().panel(row, std::min<int64_t>(128, 300 - row)), row);
        EXPECT_EQ(sum, content_hash(m.view(), 0));
        EXPECT_NE(sum, content_hash(m.view(), 1));
    }
}

// Values of NVFP4 with an unusual tensor scale do not fit into BF16; rounding the source would be counted as an error.
TEST(Verify, AQuantizedSourceIsComparedInFp32) {
    QuantMatrix m(Format::nvfp4, 32, 64);
    for (size_t i = 0; i < m.codes.size(); ++i) m.codes[i] = static_cast<uint8_t>(i * 37);
    for (size_t i = 0; i < m.block_scales.size(); ++i) m.block_scales[i] = static_cast<uint8_t>(1 + i % 126);
    m.tensor_scale = 0.1f / 3;
    FakeCheckpoint source, out;
    source.add_quantized("a_proj.weight", m);
    out.add_quantized("a_proj.weight", m);
    ThreadPool pool(2);
    const auto verified = verify(out, {.source = &source}, pool, {});
    ASSERT_TRUE(verified.ok()) << verified.error().message();
    EXPECT_EQ(verified->findings, Findings{});
    EXPECT_EQ(verified->tensors[0].squared_error, 0.0);
    EXPECT_GT(verified->tensors[0].squared_weight, 0.0);
}

TEST(Verify, StopsOnRequest) {
    Fixture f;
    const std::atomic<bool> stop{true};
    JobHooks hooks;
    hooks.stop_requested = &stop;
    ThreadPool pool(2);
    EXPECT_FALSE(verify(f.out, {}, pool, hooks).ok());
}

}  // namespace
}  // namespace nibble::test
