// Calibration and KL scores on an emulated GPU, compared with the CPU's.
#include "device/emulated_gpu.h"
#include "model/device/model.h"
#include "model/memory_checkpoint.h"
#include "quant/calibrate.h"
#include "quant/device_workers.h"
#include "quant/fakes.h"
#include "quant/recipe.h"
#include "quant/resolve.h"
#include "quant/search_scores.h"
#include "support/files.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>

namespace nibble::test {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

Texts random_texts(int vocab, unsigned seed = 1) {
    std::mt19937 random(seed);
    Texts texts;
    for (int i = 0; i < 9; ++i) {
        auto& ids = texts.emplace_back(static_cast<size_t>(20 + 7 * i));
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
    }
    return texts;
}

// Returns a model with two layers and four experts, of which two are chosen.
std::shared_ptr<MemoryCheckpoint> small_mixture() {
    auto m = std::make_shared<MemoryCheckpoint>(Json{{"model_type", "qwen3_moe"},
                                                     {"vocab_size", 48},
                                                     {"hidden_size", 32},
                                                     {"intermediate_size", 64},
                                                     {"moe_intermediate_size", 48},
                                                     {"num_hidden_layers", 2},
                                                     {"num_attention_heads", 4},
                                                     {"num_key_value_heads", 2},
                                                     {"head_dim", 16},
                                                     {"num_experts", 4},
                                                     {"num_experts_per_tok", 2},
                                                     {"norm_topk_prob", true},
                                                     {"decoder_sparse_step", 1},
                                                     {"mlp_only_layers", Json::array()},
                                                     {"rms_norm_eps", 1e-5},
                                                     {"rope_theta", 10000.0},
                                                     {"tie_word_embeddings", false},
                                                     {"hidden_act", "silu"},
                                                     {"max_position_embeddings", 4096}});
    m->add("model.embed_tokens.weight", {48, 32}, 1.0f);
    for (int l = 0; l < 2; ++l) {
        const std::string p = fmt::format("model.layers.{}.", l);
        m->add(p + "input_layernorm.weight", {32}, 0.1f, 1.0f);
        m->add(p + "self_attn.q_proj.weight", {64, 32}, 0.2f);
        m->add(p + "self_attn.k_proj.weight", {32, 32}, 0.2f);
        m->add(p + "self_attn.v_proj.weight", {32, 32}, 0.2f);
        m->add(p + "self_attn.o_proj.weight", {32, 64}, 0.2f);
        m->add(p + "self_attn.q_norm.weight", {16}, 0.1f, 1.0f);
        m->add(p + "self_attn.k_norm.weight", {16}, 0.1f, 1.0f);
        m->add(p + "post_attention_layernorm.weight", {32}, 0.1f, 1.0f);
        m->add(p + "mlp.gate.weight", {4, 32}, 0.2f);
        for (int e = 0; e < 4; ++e) {
            const std::string x = fmt::format("{}mlp.experts.{}.", p, e);
            m->add(x + "gate_proj.weight", {48, 32}, 0.2f);
            m->add(x + "up_proj.weight", {48, 32}, 0.2f);
            m->add(x + "down_proj.weight", {32, 48}, 0.2f);
        }
    }
    m->add("model.norm.weight", {32}, 0.1f, 1.0f);
    m->add("lm_head.weight", {48, 32}, 0.2f);
    return m;
}

class DeviceCalibrationTest : public ::testing::Test {
protected:
    void SetUp() override {
        emulated_gpu().free_bytes = int64_t{1} << 30;
        emulated_gpu().fails_after = -1;
    }
    static Plan plan_of(const Checkpoint& source, std::string_view recipe, std::string kv = {}) {
        auto made =
            resolve(*load_recipe(recipe), source.tensors(), source.config(), {.kv = std::move(kv), .statistics = true});
        EXPECT_TRUE(made.ok()) << made.error().message();
        return std::move(*made);
    }
    static Result<Calibration> run(const Checkpoint& source, const Plan& plan, bool device,
                                   CalibrationOptions options = {}, int threads = 2, unsigned text = 1) {
        ThreadPool pool(threads);
        options.scratch = std::filesystem::temp_directory_path();
        options.device.cuda = device;
        const Texts texts = random_texts(48, text);
        return calibrate(source, plan, "test", texts, options, pool, {});
    }
    using Ranges = std::map<std::string, Range, std::less<>>;
    static void expect_close(const Ranges& device, const Ranges& cpu, size_t count, float within = 0.02f) {
        ASSERT_EQ(cpu.size(), count);
        ASSERT_EQ(device.size(), count);
        for (const auto& [name, range] : cpu) {
            EXPECT_EQ(device.at(name).rows(), range.rows()) << name;
            EXPECT_NEAR(device.at(name).amax() / range.amax(), 1.0f, within) << name;
        }
    }
    static void expect_same(const Ranges& a, const Ranges& b) {
        ASSERT_EQ(a.size(), b.size());
        for (const auto& [name, range] : a) {
            EXPECT_EQ(b.at(name).rows(), range.rows()) << name;
            EXPECT_EQ(b.at(name).amax(), range.amax()) << name;
        }
    }
    static std::vector<QuantMatrix> solutions(const Plan& plan, Calibration& seen) {
        std::vector<QuantMatrix> all;
        for (const PlanEntry& entry : plan.entries)
            if (entry.solver) all.push_back((*seen.statistics->statistics(entry))->solution->matrix);
        return all;
    }
    // Returns the share of equal codes.
    static double agreement(const std::vector<QuantMatrix>& a, const std::vector<QuantMatrix>& b) {
        int64_t same = 0, all = 0;
        for (size_t i = 0; i < a.size(); ++i)
            for (size_t j = 0; j < a[i].codes.size(); ++j, ++all) same += a[i].codes[j] == b[i].codes[j];
        return static_cast<double>(same) / static_cast<double>(all);
    }
};

TEST_F(DeviceCalibrationTest, RangesAreWithinTwoPercentOfTheCpusForEveryRule) {
    const auto source = small_checkpoint();
    const Plan plan = plan_of(*source, "nvfp4", "fp8");
    for (const RangeRule& rule :
         {RangeRule{}, RangeRule{RangeRule::Kind::percentile, 99}, RangeRule{RangeRule::Kind::mse, 0}}) {
        const auto cpu = run(*source, plan, false, {.range = rule});
        const auto device = run(*source, plan, true, {.range = rule});
        ASSERT_TRUE(cpu.ok()) << cpu.error().message();
        ASSERT_TRUE(device.ok()) << device.error().message();
        EXPECT_TRUE(device->on_device);
        EXPECT_FALSE(cpu->on_device);
        // mse chooses among 64ths of the maximum.
        const float within = rule.kind == RangeRule::Kind::mse ? 0.02f + 1.0f / 32 : 0.02f;
        expect_close(device->inputs, cpu->inputs, 21, within);
        expect_close(device->keys, cpu->keys, 3, within);
        expect_close(device->values, cpu->values, 3, within);
    }
}

TEST_F(DeviceCalibrationTest, RangesDoNotDependOnBatchesOrThreads) {
    const auto source = small_checkpoint();
    const Plan plan = plan_of(*source, "nvfp4", "nvfp4");
    const auto one = run(*source, plan, true, {}, 1), other = run(*source, plan, true, {.batch_tokens = 50}, 3);
    ASSERT_TRUE(one.ok() && other.ok());
    expect_same(one->inputs, other->inputs);
    expect_same(one->keys, other->keys);
    expect_same(one->values, other->values);
}

TEST_F(DeviceCalibrationTest, AQuantizedHeadIsCalibrated) {
    const auto source = small_checkpoint();
    Plan plan = plan_of(*source, "fp8");
    for (PlanEntry& entry : plan.entries)
        if (entry.module == "lm_head") entry.spec.format = Format::fp8, entry.activation = ActivationFormat::fp8;
    const auto cpu = run(*source, plan, false), device = run(*source, plan, true);
    ASSERT_TRUE(cpu.ok() && device.ok());
    EXPECT_TRUE(device->inputs.contains("lm_head"));
    expect_close(device->inputs, cpu->inputs, 22);
}

TEST_F(DeviceCalibrationTest, ExpertsCountTheirTokensAndFewAreNamedAsOnTheCpu) {
    const auto source = small_mixture();
    const Plan plan = plan_of(*source, "nvfp4");
    const auto cpu = run(*source, plan, false, {.expert_tokens = 200});
    const auto device = run(*source, plan, true, {.expert_tokens = 200});
    ASSERT_TRUE(cpu.ok()) << cpu.error().message();
    ASSERT_TRUE(device.ok()) << device.error().message();
    expect_close(device->inputs, cpu->inputs, 8 + 24);
    ASSERT_FALSE(cpu->gaps.empty());
    EXPECT_EQ(cpu->gaps[0].kind, GapKind::few_tokens);
    EXPECT_EQ(device->gaps, cpu->gaps);
    EXPECT_LT(device->inputs.at("model.layers.0.mlp.experts.0.up_proj").rows(), device->tokens);
}

// With a norm of zeros, the inputs of q, k and v are zero, and therefore all keys and values, and the inputs of o.
TEST_F(DeviceCalibrationTest, ZeroStatisticsAreReportedAsOnTheCpu) {
    const auto source = small_mixture();
    source->scale("model.layers.0.input_layernorm.weight", 0.0f);
    for (const std::string_view recipe : {"nvfp4", "fp8", "nvfp4_gptq", "w4a16_nvfp4_local_hessian"}) {
        SCOPED_TRACE(recipe);
        const Plan plan = plan_of(*source, recipe, "fp8");
        auto cpu = run(*source, plan, false), device = run(*source, plan, true);
        ASSERT_TRUE(cpu.ok()) << cpu.error().message();
        ASSERT_TRUE(device.ok()) << device.error().message();
        EXPECT_EQ(device->gaps, cpu->gaps);
        const auto with = [&](GapKind kind) {
            const auto found = std::ranges::find(device->gaps, kind, &CalibrationGap::kind);
            return found == device->gaps.end() ? std::vector<std::string>{} : found->modules;
        };
        EXPECT_EQ(with(GapKind::zero_cache), std::vector<std::string>{"model.layers.0.self_attn"});
        if (recipe != "w4a16_nvfp4_local_hessian") {
            EXPECT_EQ(with(GapKind::zero_inputs).size(), 4u) << "q, k, v and o";
        }
        const ScaleTable scales = scale_table(*device, plan, Arithmetic::true_division);
        EXPECT_EQ(scales.values.at("model.layers.0.self_attn.k_proj.k_scale"), 1.0f);
        if (recipe == "fp8") EXPECT_EQ(scales.values.at("model.layers.0.self_attn.q_proj.input_scale"), 1.0f);
        if (recipe == "nvfp4") EXPECT_EQ(scales.values.at("model.layers.0.self_attn.q_proj.input_scale"), 1.0f / 448);
        for (auto* seen : {&*cpu, &*device}) {
            if (!seen->statistics) continue;
            for (const PlanEntry& entry : plan.entries) {
                if (!entry.solver || !entry.module.starts_with("model.layers.0.self_attn")) continue;
                const SolveGaps& gaps = (*seen->statistics->statistics(entry))->solution->gaps;
                EXPECT_EQ(gaps.no_feedback, recipe == "nvfp4_gptq") << entry.module;
                EXPECT_EQ(gaps.blind_blocks, recipe == "nvfp4_gptq" ? 0 : entry.rows() * entry.cols() / 16)
                    << entry.module;
            }
        }
    }
}

TEST_F(DeviceCalibrationTest, EveryExpertSeesEveryTokenOnRequest) {
    const auto source = small_mixture();
    const Plan plan = plan_of(*source, "nvfp4");
    const auto cpu = run(*source, plan, false, {.all_experts = true});
    const auto device = run(*source, plan, true, {.all_experts = true});
    ASSERT_TRUE(cpu.ok() && device.ok());
    expect_close(device->inputs, cpu->inputs, 8 + 24);
    for (const auto& [name, range] : device->inputs) EXPECT_EQ(range.rows(), device->tokens) << name;
}

// Error compensation amplifies every difference, so the codes are also compared with those of another text.
TEST_F(DeviceCalibrationTest, SolversGetTheSameStatistics) {
    for (const auto& source : {small_checkpoint(), small_mixture()})
        for (const auto& [recipe, inputs] : {std::pair{"w4a16_nvfp4_gptq", ActivationFormat::none},
                                             {"w4a16_nvfp4_local_hessian", ActivationFormat::none},
                                             {"w4a16_nvfp4_gptq", ActivationFormat::nvfp4}}) {
            SCOPED_TRACE(recipe);
            Plan plan = plan_of(*source, recipe);
            for (PlanEntry& entry : plan.entries)
                if (entry.solver) entry.activation = inputs;
            auto cpu = run(*source, plan, false), device = run(*source, plan, true), again = run(*source, plan, true);
            auto other = run(*source, plan, false, {}, 2, 2);
            ASSERT_TRUE(cpu.ok()) << cpu.error().message();
            ASSERT_TRUE(device.ok()) << device.error().message();
            const auto want = solutions(plan, *cpu), got = solutions(plan, *device);
            ASSERT_FALSE(want.empty());
            const double apart = 1 - agreement(solutions(plan, *other), want);
            EXPECT_GT(apart, 0.1);
            EXPECT_LT(1 - agreement(got, want), 0.8 * apart);
            EXPECT_EQ(agreement(got, solutions(plan, *again)), 1.0);
            EXPECT_NE(device->statistics->identity(), cpu->statistics->identity());
        }
}

TEST_F(DeviceCalibrationTest, GradientsAreComputedOnTheCpuAlsoWithCuda) {
    const auto source = small_checkpoint();
    const Plan plan = plan_of(*source, "w4a16_nvfp4_nibble_best");
    EXPECT_FALSE(calibrates_on_device(plan));
    auto cpu = run(*source, plan, false), device = run(*source, plan, true);
    ASSERT_TRUE(cpu.ok() && device.ok());
    EXPECT_FALSE(device->on_device);
    EXPECT_EQ(agreement(solutions(plan, *device), solutions(plan, *cpu)), 1.0);
    EXPECT_EQ(device->statistics->identity(), cpu->statistics->identity());
}

// The host scans and solves tensors with a solver, while panels of other tensors are on the GPU.
TEST_F(DeviceCalibrationTest, SolvedTensorsAreWrittenTogetherWithPanelsOfTheGpu) {
    const auto source = std::move(*Checkpoint::open(test_data("chat")));
    Plan plan = plan_of(*source, "w4a16_nvfp4_gptq");
    for (PlanEntry& entry : plan.entries)
        if (entry.module.ends_with("o_proj")) entry.solver = {};
    std::vector<std::vector<Stored>> stored;
    for (const bool device : {false, true}) {
        auto seen = run(*source, plan, false);
        ASSERT_TRUE(seen.ok());
        JobOptions options = options_for(plan);
        options.statistics = seen->statistics.get();
        std::unique_ptr<PanelWorkers> workers;
        if (device) {
            auto opened = open_device_workers({true, 0}, *source, plan, 2);
            ASSERT_TRUE(opened.ok()) << opened.error().message();
            workers = *std::move(opened);
            options.workers = workers.get();
        }
        FakeExport out(export_tensors(*source, plan, options.scales));
        ThreadPool pool(2);
        const auto report = run_quantize(*source, plan, options, out, pool, {});
        ASSERT_TRUE(report.ok()) << report.error().message();
        stored.push_back(out.stored);
    }
    EXPECT_TRUE(stored[0] == stored[1]);
}

TEST_F(DeviceCalibrationTest, ErrorsEqualThoseOfTheCpu) {
    const auto source = small_checkpoint();
    const Plan plan = plan_of(*source, "nvfp4");
    source->set("model.layers.1.mlp.down_proj.weight", 5, INFINITY);
    const auto cpu = run(*source, plan, false), device = run(*source, plan, true);
    ASSERT_FALSE(cpu.ok());
    ASSERT_FALSE(device.ok());
    std::string want = cpu.error().message();
    for (const std::string_view one : {": NaN in", ": infinity in"})
        if (const size_t at = want.find(one); at != want.npos) want.replace(at, one.size(), ": NaN or infinity in");
    EXPECT_EQ(device.error().message(), want);
    EXPECT_NE(want.find("model.layers.1.mlp"), want.npos) << want;
    const auto wide = run(*small_checkpoint(), plan, true, {.compute = Compute::f32});
    ASSERT_FALSE(wide.ok());
    EXPECT_EQ(wide.error().message(), "calibration on a GPU rounds to BF16 between operators; FP32 runs on the CPU");
}

// Names and formats of all products come from the model; the emulated GPU's kernels have their own names.
TEST_F(DeviceCalibrationTest, TheTableOfKernelsNamesEveryProductInOrder) {
    ThreadPool pool(1);
    const auto rows = [&](const std::shared_ptr<const Checkpoint>& source, int64_t tokens) {
        const auto table = DeviceModel::kernel_table(source, {}, {true, 0}, tokens, pool);
        std::vector<std::string> lines;
        EXPECT_TRUE(table.ok()) << table.error().message();
        if (!table.ok()) return lines;
        for (const LayerKernels& layer : table->layers)
            for (const KernelUse& use : layer.uses)
                lines.push_back(fmt::format("{}|{}|{}|{}x{}|{}|{}", layer.prefix, fmt::join(use.modules, ","),
                                            use.weights, use.out_width, use.in_width, use.choice.kernel,
                                            use.choice.why));
        return lines;
    };
    const std::vector<std::string> mixture = rows(small_mixture(), 3);
    ASSERT_EQ(mixture.size(), 2u * 7 + 1);
    EXPECT_EQ(mixture[0], "model.layers.0.self_attn|q_proj,k_proj,v_proj|bf16|128x32|emulated|3 rows");
    EXPECT_EQ(mixture[1], "model.layers.0.self_attn|o_proj|bf16|32x64|emulated|3 rows");
    EXPECT_EQ(mixture[2], "model.layers.0.self_attn|attention, 3 sequences||0x0|emulated attention|4 heads");
    EXPECT_EQ(mixture[3], "model.layers.0.self_attn|attention, a prompt of 3||0x0|emulated attention|4 heads");
    EXPECT_EQ(mixture[4], "model.layers.0.mlp|gate|bf16|4x32|emulated|3 rows");
    EXPECT_EQ(mixture[5],
              "model.layers.0.mlp|experts.*.gate_proj,experts.*.up_proj|bf16|96x32|emulated grouped|6 rows of 4 "
              "experts");
    EXPECT_EQ(mixture[6], "model.layers.0.mlp|experts.*.down_proj|bf16|32x48|emulated grouped|6 rows of 4 experts");
    EXPECT_EQ(mixture.back(), "lm_head|lm_head|bf16|48x32|emulated|3 rows");
    EXPECT_EQ(rows(small_checkpoint(), 1).size(), 3u * 5 + 1);  // q/k/v, o_proj, attention, gate/up, down_proj
}

TEST_F(DeviceCalibrationTest, TooLittleMemoryIsAnErrorWithItsSizes) {
    emulated_gpu().free_bytes = int64_t{100} << 20;
    const auto source = small_checkpoint();
    const auto seen = run(*source, plan_of(*source, "nvfp4"), true);
    ASSERT_FALSE(seen.ok());
    EXPECT_TRUE(
        seen.error().message().starts_with("432 tokens need 0.13 GiB on cuda:0 (0.00 GiB for residual "
                                           "streams, 0.13 GiB for the weights of a block, 0.00 GiB for a "
                                           "batch of 432 rows); 0.10 GiB of 1.00 GiB are free"))
        << seen.error().message();
}

TEST_F(DeviceCalibrationTest, KlScoresAreWithinAFewPercentOfTheCpus) {
    const auto source = small_checkpoint();
    const Texts texts = random_texts(48);
    ThreadPool pool(2);
    auto space = search_space(source->tensors(), source->config(), {.formats = {"nvfp4", "fp8"}});
    ASSERT_TRUE(space.ok());
    std::vector<SearchScores> found;
    std::vector<double> measured;
    for (const bool device : {false, true}) {
        const ScoreOptions options{.method = ScoreMethod::kl, .device = {.cuda = device}};
        auto trials = Trials::create(*source, *space, "test", texts, options, pool, {});
        ASSERT_TRUE(trials.ok()) << trials.error().message();
        auto scores = search_scores(*trials, "test", texts, options, {});
        ASSERT_TRUE(scores.ok()) << scores.error().message();
        found.push_back(std::move(*scores));
        auto meter = KlMeter::create(*source, texts, options, pool);
        ASSERT_TRUE(meter.ok()) << meter.error().message();
        const auto trial = std::move(*trials->uniform(0));
        const auto kl = meter->measure(*trial);
        ASSERT_TRUE(kl.ok()) << kl.error().message();
        measured.push_back(*kl);
    }
    double cpu = 0, difference = 0;
    for (size_t g = 0; g < found[0].values.size(); ++g)
        for (size_t i = 0; i < found[0].values[g].size(); ++i) {
            cpu += found[0].values[g][i];
            difference += std::abs(found[1].values[g][i] - found[0].values[g][i]);
        }
    EXPECT_GT(cpu, 0.0);
    EXPECT_LT(difference, 0.1 * cpu);
    EXPECT_NEAR(measured[1] / measured[0], 1.0, 0.05);
}

}  // namespace
}  // namespace nibble::test
