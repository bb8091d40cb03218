// Tests precision recipes: each trains, is independent of threads and batches, and has the products of a slow
// reference.
#include "train/small_trainer.h"

#include "model/models.h"
#include "train/check_forward.h"
#include "train/host_recipe.h"
#include "train/tiny_families.h"
#include "train/train_eden.h"
#include "train/train_flops.h"
#include "train/train_shapes.h"

#include <cmath>
#include <map>
#include <set>

namespace nibble::test {
namespace {

const std::vector<std::string> quantized_recipes{"fp8",        "fp8_delayed",  "fp8_block",
                                                 "mxfp8",      "nvfp4",        "nvfp4_no_rht",
                                                 "nvfp4_w4a4", "nibble_nvfp4", "nibble_nvfp4_late"};

TrainerOptions with(const std::string& recipe) {
    TrainerOptions options;
    options.precision = *train_precision_from_name(recipe);
    options.precision.rank = 4;
    return options;
}

struct TrainedRun {
    std::vector<float> masters;
    std::vector<double> losses;
};

TrainedRun train(const std::string& recipe, int threads, const std::vector<TrainBatch>& batches, int steps,
                 double rate = 0.01) {
    ThreadPool pool(threads);
    const auto trainer = small_trainer(pool, with(recipe), wide_llama());
    TrainedRun run;
    trainer->begin(0, steps);
    for (int s = 0; s < steps; ++s) {
        const auto step = trainer->step(batches, rate);
        EXPECT_TRUE(step.ok()) << step.error().message();
        run.losses.push_back(step->loss);
    }
    run.masters = all_masters(trainer->parameters());
    return run;
}

class TrainRecipes : public testing::TestWithParam<std::string> {};

TEST_P(TrainRecipes, ThreadsAndBatchesChangeNoBit) {
    const TrainBatch all = random_batch(5, 40, 48, 9);
    const TrainedRun want = train(GetParam(), 1, {all}, 3);
    EXPECT_EQ(train(GetParam(), 3, {all}, 3).masters, want.masters);
    EXPECT_EQ(train(GetParam(), 2, {rows_of(all, 0, 3), rows_of(all, 3, 2)}, 3).masters, want.masters);
    const TrainedRun plain = train("bf16", 1, {all}, 3);
    EXPECT_NE(plain.masters, want.masters);
    EXPECT_NEAR(want.losses[0], plain.losses[0], 0.25);
}

TEST_P(TrainRecipes, LossFalls) {
    const std::string text = "the cat sat on the mat and the dog sat on the log ";
    std::vector<int32_t> tokens;
    for (int i = 0; i < 4 * 33; ++i) tokens.push_back(text[static_cast<size_t>(i) % text.size()] % 48);
    const TrainedRun run = train(GetParam(), 2, {next_token_batch(tokens, 4, 32)}, 40);
    EXPECT_GT(run.losses.front(), 3.0);
    EXPECT_LT(run.losses.back(), 1.2);
}

// Scales and directions are part of a checkpoint: a resumed run ends with the same bits.
TEST_P(TrainRecipes, ResumesFromItsState) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(3, 32, 48, 5);
    const auto whole = small_trainer(pool, with(GetParam()), wide_llama());
    whole->begin(0, 8);
    for (int s = 0; s < 3; ++s) ASSERT_TRUE(whole->step({&batch, 1}, 0.01).ok());
    const auto second = small_trainer(pool, with(GetParam()), wide_llama());
    for (size_t id = 0; id < second->parameters().count(); ++id) {
        std::ranges::copy(whole->parameters().master(id), second->parameters().master(id).begin());
        second->optimizer().m(id) = whole->optimizer().m(id);
        second->optimizer().v(id) = whole->optimizer().v(id);
    }
    second->optimizer().set_steps(whole->optimizer().steps());
    ASSERT_TRUE(second->products().set_state(whole->products().state()).ok());
    ASSERT_TRUE(second->renew().ok());
    second->begin(3, 8);
    for (int s = 3; s < 8; ++s) {
        ASSERT_TRUE(whole->step({&batch, 1}, 0.01).ok());
        ASSERT_TRUE(second->step({&batch, 1}, 0.01).ok());
    }
    EXPECT_EQ(all_masters(second->parameters()), all_masters(whole->parameters()));
    EXPECT_FALSE(second->products().set_state({1, 2}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, TrainRecipes, testing::ValuesIn(quantized_recipes),
                         [](const auto& info) { return info.param; });

// The forward product of fp8_block equals the engine's own product with such weights and inputs.
TEST(HostRecipe, BlockProductsAreTheEngines) {
    ThreadPool pool(2);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const int64_t m = 9, n = 160, k = 384;
    std::vector<float> x, w;
    for (int64_t i = 0; i < m * k; ++i) x.push_back(round_to_bf16(normal(random)));
    for (int64_t i = 0; i < n * k; ++i) w.push_back(round_to_bf16(0.1f * normal(random)));
    const CastOperand a = cast_rows(x.data(), m, k, k, {.format = CastFormat::fp8_block}, {}, {}, pool);
    const CastOperand b = cast_rows(w.data(), n, k, k, {.format = CastFormat::fp8_block, .square = true}, {}, {}, pool);
    QuantMatrix codes(Format::fp8_block128, n, k);
    for (size_t i = 0; i < w.size(); ++i) codes.codes[i] = e4m3_from_float(b.values[i]);
    for (int64_t r = 0; r < n; r += 128)
        for (int64_t c = 0; c < 3; ++c)
            codes.float_scales[static_cast<size_t>(r / 128 * 3 + c)] = b.block_scales[static_cast<size_t>(r * 3 + c)];
    const auto packed = prepack(codes.view(), pool);
    ASSERT_TRUE(packed.ok()) << packed.error().message();
    const MatmulKernels& kernels = **select_matmul_kernels();
    std::vector<float> want(static_cast<size_t>(m * n)), got(want.size());
    kernels.matmul(*packed, {.x = x.data(), .rows = m, .stride = k, .activation = ActivationFormat::fp8_group128},
                   {want.data(), n}, pool);
    operand_product(a, PackedOperand(b, pool), {got.data(), n}, nullptr, kernels, pool);
    EXPECT_EQ(got, want);
}

// Compares the product of any operands with the FP64 product of their decoded values.
TEST(HostRecipe, ProductsAreThoseOfDecodedOperands) {
    ThreadPool pool(2);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    const int64_t m = 7, n = 33, k = 144;
    std::vector<float> x, w, bias, more;
    for (int64_t i = 0; i < m * k; ++i) x.push_back(normal(random));
    for (int64_t i = 0; i < n * k; ++i) w.push_back(normal(random));
    for (int64_t i = 0; i < n; ++i) bias.push_back(normal(random));
    for (int64_t i = 0; i < m * n; ++i) more.push_back(normal(random));
    for (const CastRule& rule :
         {CastRule{.format = CastFormat::bf16}, CastRule{.format = CastFormat::fp8},
          CastRule{.format = CastFormat::fp8_e5m2}, CastRule{.format = CastFormat::fp8_block},
          CastRule{.format = CastFormat::fp8_block2}, CastRule{.format = CastFormat::mxfp8},
          CastRule{.format = CastFormat::nvfp4}, CastRule{.format = CastFormat::nvfp4, .row_scaled = true},
          CastRule{.format = CastFormat::nvfp4, .four_over_six = true}}) {
        CastRule right = rule;
        right.row_scaled = false;
        const CastOperand a = cast_rows(x.data(), m, k, k, rule, {}, {}, pool);
        const CastOperand b = cast_rows(w.data(), n, k, k, right, {}, {}, pool);
        const auto value = [](const CastOperand& o, int64_t r, int64_t c) {
            double v = double{o.values[static_cast<size_t>(r * o.cols + c)]} *
                       o.scale[o.scale.size() > 1 ? static_cast<size_t>(r) : 0] / o.divisor;
            if (!o.block_scales.empty()) v *= o.block_scales[static_cast<size_t>(r * (o.cols / 128) + c / 128)];
            return v;
        };
        std::vector<float> got(static_cast<size_t>(m * n));
        operand_product(a, PackedOperand(b, pool), {.y = got.data(), .stride = n, .bias = bias.data()}, more.data(),
                        **select_matmul_kernels(), pool);
        double apart = 0, exact = 0;
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                double sum = 0, source = 0;
                for (int64_t c = 0; c < k; ++c) {
                    sum += value(a, i, c) * value(b, j, c);
                    source += double{x[static_cast<size_t>(i * k + c)]} * w[static_cast<size_t>(j * k + c)];
                }
                const auto at = static_cast<size_t>(i * n + j);
                EXPECT_NEAR(got[at], sum + bias[static_cast<size_t>(j)] + more[at], 1e-4);
                apart += (sum - source) * (sum - source), exact += source * source;
            }
        EXPECT_LT(std::sqrt(apart / exact), rule.format == CastFormat::nvfp4 ? 0.2 : 0.1);
    }
}

// A transpose has no padding, whatever the blocks of the other dimension.
TEST(HostRecipe, TransposesOfBlocksKeepTheirSize) {
    ThreadPool pool(2);
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    const int64_t n = 200, k = 72;
    std::vector<float> w;
    for (int64_t i = 0; i < n * k; ++i) w.push_back(normal(random));
    for (const CastFormat format : {CastFormat::fp8_block, CastFormat::fp8_block2, CastFormat::nvfp4}) {
        const CastOperand o = cast_rows(w.data(), n, k, k, {.format = format, .square = true}, {}, {}, pool);
        const CastOperand t = transposed_cast(o, k, pool);
        ASSERT_EQ(t.rows, k);
        const int64_t blocks = t.cols / 128, there = o.cols / 128;
        for (int64_t c = 0; c < k; ++c)
            for (int64_t r = 0; r < n; ++r) {
                EXPECT_EQ(t.values[static_cast<size_t>(c * t.cols + r)], o.values[static_cast<size_t>(r * o.cols + c)]);
                if (o.block_scales.empty()) continue;
                EXPECT_EQ(t.block_scales[static_cast<size_t>(c * blocks + r / 128)],
                          o.block_scales[static_cast<size_t>(r * there + c / 128)]);
            }
    }
}

TEST(MsEden, IsUnbiasedAtHalfTheErrorOfStochasticRounding) {
    ThreadPool pool(2);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const int64_t rows = 256, cols = 1024;
    std::vector<float> x;
    for (int64_t i = 0; i < rows * cols; ++i) x.push_back(round_to_bf16(normal(random)));
    const CastRandom signs{.id = 5, .draw = 77};
    const CastOperand o =
        eden_rows(x.data(), rows, cols, cols, {.id = 1, .draw = 77, .outer_step = 64}, signs, 0, pool);
    // Rotates back: the transform is its own inverse.
    double error = 0, dot = 0, squares = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t g = 0; g < cols; g += 128)
            for (int64_t n = 0; n < 128; ++n) {
                double sum = 0;
                for (int64_t j = 0; j < 128; ++j)
                    sum += o.values[static_cast<size_t>(r * cols + g + j)] *
                           (__builtin_popcountll(n & j) % 2 ? -1.0 : 1.0);
                const double sign = signs.block(static_cast<uint64_t>(g + n), 0).word[0] & 1 ? -1 : 1;
                const double q = sum / std::sqrt(128.0) * o.scale[0] * sign,
                             v = x[static_cast<size_t>(r * cols + g + n)];
                error += (q - v) * (q - v), dot += q * v, squares += v * v;
            }
    EXPECT_NEAR(error / squares, 9.75e-3, 0.3e-3);  // reference value of another program
    EXPECT_NEAR(dot / squares, 1.0, 1e-3);
}

// If every expert gets every token, all experts see the same gradients of their outputs before the router's weights are
// applied. The input gradient rounds these. So one scale fits all experts, whatever the router's weights.
TEST(HostRecipe, DelayedScalesCoverUnweightedGradientsOfExperts) {
    ThreadPool pool(2);
    Json config = tiny("mixtral");
    config["num_experts_per_tok"] = 4;
    const auto parameters = random_start(config, DType::bf16, 7, pool);
    ASSERT_TRUE(parameters.ok()) << parameters.error().message();
    for (size_t id = 0; id < (*parameters)->count(); ++id)  // makes the router's weights uneven
        if ((*parameters)->tensors()[id].name.ends_with(".gate.weight"))
            for (float& w : (*parameters)->master(id)) w *= 50;
    (*parameters)->publish(pool);
    TrainerOptions options = with("fp8_delayed");
    options.precision.amax_history = 1;
    const auto trainer = Trainer::create(*parameters, options, pool);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message();
    const TrainBatch batch = random_batch(2, 24, 64, 3);
    ASSERT_TRUE((*trainer)->step({&batch, 1}, 1e-3).ok());
    const HostRecipe* const products = dynamic_cast<const HostRecipe*>(&(*trainer)->products());
    ASSERT_TRUE(products);
    const std::vector<float> state = products->state();  // per unit: scale and history of inputs, weights and gradients
    std::map<std::string, std::set<float>> scales;       // by layer
    int64_t experts = 0;
    size_t at = 0;
    for (size_t u = 0; u < products->units(); ++u) {
        const ForwardWeight weight = products->forward_weight(u);
        if (!weight.rules.delayed) continue;
        ASSERT_LT(at + 5, state.size());
        const std::string name = weight.parts[0].name;
        if (name.ends_with(".w2")) {
            scales[name.substr(0, name.find(".experts."))].insert(state[at + 4]);
            ++experts;
        }
        at += 6;
    }
    ASSERT_EQ(state.size(), at);
    EXPECT_EQ(experts, 8);
    ASSERT_EQ(scales.size(), 2u);
    for (const auto& [layer, all] : scales) {
        EXPECT_EQ(all.size(), 1u) << layer;
        EXPECT_GT(*all.begin(), 1.0f) << layer;
    }
}

TEST(HostRecipe, TheTableListsTheProducts) {
    ThreadPool pool(1);
    TrainerOptions options = with("nvfp4");
    options.precision.last_bf16 = 1;
    const auto lines = small_trainer(pool, options, wide_llama())->products().table();
    ASSERT_EQ(lines.size(), 9U);  // 2 layers of 4 units, and the head
    EXPECT_EQ(lines[0].name, "model.layers.0.self_attn.q_proj");
    EXPECT_EQ(lines[0].forward, "NVFP4 1x16 x NVFP4 16x16");
    EXPECT_EQ(lines[0].input_gradient, "NVFP4 1x16 SR x NVFP4 16x16");
    EXPECT_EQ(lines[0].weight_gradient, "NVFP4 1x16 RHT SR x NVFP4 1x16 RHT");
    EXPECT_EQ(lines[4].forward, "BF16");
    EXPECT_EQ(lines[8].name, "lm_head");
    EXPECT_EQ(lines[8].forward, "BF16");
    options = with("nibble_nvfp4");
    const auto n1 = small_trainer(pool, options, wide_llama())->products().table();
    EXPECT_EQ(n1[0].forward, "E4M3 1x128 x E4M3 128x128");
    EXPECT_EQ(n1[2].forward, "NVFP4 1x16 4/6 + rank 4");
    EXPECT_EQ(n1[2].weight_gradient, "NVFP4 MS-EDEN");
    options = with("nvfp4");
    options.precision.scope = TrainScope::mlp;
    const auto mlp = small_trainer(pool, options, wide_llama())->products().table();
    EXPECT_EQ(mlp[1].forward, "BF16");
    EXPECT_EQ(mlp[2].name, "model.layers.0.mlp.gate_proj");
    EXPECT_EQ(mlp[2].forward, "NVFP4 1x16 x NVFP4 16x16");
}

// The three products of a unit for given rows.
struct UnitProducts {
    std::vector<float> y, dx, dw;
};

struct KeptGradient : GradientSink {
    std::vector<float> all;
    Status add(const std::string&, const float* g, int64_t rows, int64_t cols) override {
        all.insert(all.end(), g, g + rows * cols);
        return Ok{};
    }
};

// Computes the three products of the first MLP unit as a step does. y is empty if the engine's own product is used.
UnitProducts unit_products(Trainer& trainer) {
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    StepProducts& products = trainer.products();
    const auto unit = trainer.model().blocks()[1].mixer().units()[0];
    int64_t rows = 0;
    for (const Linear& l : unit) rows += l.rows;
    const int64_t n = 32, cols = unit[0].cols;
    std::vector<float> x, dy;
    for (int64_t i = 0; i < n * cols; ++i) x.push_back(round_to_bf16(normal(random)));
    for (int64_t i = 0; i < n * rows; ++i) dy.push_back(0.01f * normal(random));
    Workspace& work = trainer.model().workspace();
    products.begin_step(0, 10);
    products.begin_row(0, n);
    UnitProducts made;
    if (products.replaces(unit)) {
        made.y.resize(static_cast<size_t>(n * rows));
        products.forward(unit, x.data(), n, {made.y.data(), rows}, work);
    }
    made.dx.resize(static_cast<size_t>(n * cols));
    products.input_gradient(unit, x.data(), dy.data(), n, rows, made.dx.data(), work);
    KeptGradient sink;
    EXPECT_TRUE(products.weight_gradient(unit, x.data(), dy.data(), n, rows, work, sink).ok());
    made.dw = sink.all;
    return made;
}

// With one quantized pass, the products of that pass have the bits of the whole recipe, and those of the other pass the
// bits of bf16.
TEST(TrainPasses, AreHalvesOfTheRecipe) {
    ThreadPool pool(2);
    const auto products = [&](const std::string& recipe, TrainPasses passes) {
        TrainerOptions options = with(recipe);
        options.precision.passes = passes;
        return unit_products(*small_trainer(pool, options, wide_llama()));
    };
    const UnitProducts bf16 = products("bf16", TrainPasses::both);
    ASSERT_TRUE(bf16.y.empty());
    for (const char* recipe : {"fp8", "fp8_block", "mxfp8", "nvfp4", "nvfp4_no_rht", "nibble_nvfp4"}) {
        const UnitProducts both = products(recipe, TrainPasses::both);
        const UnitProducts forward = products(recipe, TrainPasses::forward);
        const UnitProducts backward = products(recipe, TrainPasses::backward);
        EXPECT_FALSE(both.y.empty()) << recipe;
        EXPECT_EQ(forward.y, both.y) << recipe;
        EXPECT_EQ(forward.dx, bf16.dx) << recipe;
        EXPECT_EQ(forward.dw, bf16.dw) << recipe;
        EXPECT_TRUE(backward.y.empty()) << recipe;
        EXPECT_NE(both.dx, bf16.dx) << recipe;
        EXPECT_NE(both.dw, bf16.dw) << recipe;
        EXPECT_NE(backward.dx, bf16.dx) << recipe;
        EXPECT_NE(backward.dw, bf16.dw) << recipe;
        // MS-EDEN rounds the values that the forward product rounded
        if (recipe == std::string("nibble_nvfp4")) continue;
        EXPECT_EQ(backward.dx, both.dx) << recipe;
        EXPECT_EQ(backward.dw, both.dw) << recipe;
    }
    TrainerOptions options = with("nvfp4");
    options.precision.passes = TrainPasses::forward;
    const auto lines = small_trainer(pool, options, wide_llama())->products().table();
    EXPECT_EQ(lines[0].forward, "NVFP4 1x16 x NVFP4 16x16");
    EXPECT_EQ(lines[0].input_gradient, "FP32");
    EXPECT_EQ(lines[0].weight_gradient, "FP32");
    options.precision.passes = TrainPasses::backward;
    const auto back = small_trainer(pool, options, wide_llama())->products().table();
    EXPECT_EQ(back[0].forward, "BF16");
    EXPECT_EQ(back[0].weight_gradient, "NVFP4 1x16 RHT SR x NVFP4 1x16 RHT");
}

// Directions keep following the inputs even if the backward pass does not read them.
TEST(TrainPasses, ForwardAloneHasTheTermOfTheRecipe) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(2, 32, 48, 5);
    const auto directions = [&](TrainPasses passes, int steps) {
        TrainerOptions options = with("nibble_nvfp4");
        options.precision.passes = passes;
        const auto trainer = small_trainer(pool, options, wide_llama());
        trainer->begin(0, 8);
        for (int s = 0; s < steps; ++s) EXPECT_TRUE(trainer->step({&batch, 1}, 0).ok());
        return trainer->products().state();
    };
    EXPECT_EQ(directions(TrainPasses::forward, 2), directions(TrainPasses::both, 2));  // the weights are equal
    EXPECT_NE(directions(TrainPasses::forward, 2), directions(TrainPasses::forward, 1));
}

// Every linear but the head has three products of two FP4 operands.
TEST(Fp4Savings, CountProductsAndOperands) {
    ThreadPool pool(1);
    const auto trainer = small_trainer(pool, with("nvfp4"), wide_llama());
    const auto table = trainer->recipe().table();
    double elements = 0, weights = 0;
    for (const UnitLine& line : table) {
        if (line.name == "lm_head") continue;
        weights += double(line.rows) * line.cols;
        elements += 2.0 * line.rows * line.cols + 100.0 * 2 * (line.rows + line.cols);  // each once per product
    }
    const double flops = trainer->flops(32);
    const Fp4Savings saves = fp4_savings(table, flops, 100);
    EXPECT_DOUBLE_EQ(saves.share, 6 * weights / flops);
    EXPECT_DOUBLE_EQ(saves.time, 1 - 0.75 * saves.share);
    EXPECT_DOUBLE_EQ(saves.bf16_bytes, 2 * elements);
    EXPECT_DOUBLE_EQ(saves.bytes, 0.5625 * elements);
    EXPECT_NE(saves.text().find("a step on FP4 tensor cores: "), std::string::npos);

    const auto of = [&](const std::string& recipe) {
        const auto trained = small_trainer(pool, with(recipe), wide_llama());
        return fp4_savings(trained->recipe().table(), flops, 100);
    };
    EXPECT_EQ(of("fp8_block").text(), "");
    EXPECT_EQ(of("bf16").share, 0);
    EXPECT_LT(of("nibble_nvfp4").share, saves.share);  // the forward products of attention are FP8
    EXPECT_GT(of("nibble_nvfp4").share, saves.share * 2 / 3);
    EXPECT_EQ(of("nvfp4_w4a16").share, 0);  // FP4 x BF16 saves only bytes
    EXPECT_GT(of("nvfp4_w4a16").bf16_bytes, 0);
    EXPECT_DOUBLE_EQ(of("nvfp4_w4a4").share, saves.share / 3);
}

// A token uses only the selected ones of the routed experts.
TEST(Fp4Savings, ExpertsCountByTheirTokens) {
    BlockConfig block;
    block.mixer = MoeConfig{.experts = 8, .top_k = 2};
    EXPECT_DOUBLE_EQ(token_share(block, "model.layers.0.mlp.experts.3.up_proj"), 0.25);
    EXPECT_DOUBLE_EQ(token_share(block, "model.layers.0.mlp.shared_expert.up_proj"), 1);
    block.mixer = MlpConfig{};
    EXPECT_DOUBLE_EQ(token_share(block, "model.layers.0.mlp.up_proj"), 1);
}

// The training forward pass equals the engine's: whole documents, chunks, token by token, and together with other
// sequences.
TEST(CheckForward, RecipesThatPromiseItHaveNoMismatch) {
    struct Case {
        std::string recipe;
        bool row_scaled, promised;
    };
    for (const Case& c : {Case{"fp32", false, true},
                          {"bf16", false, true},
                          {"fp8", false, false},
                          {"fp8_delayed", false, true},
                          {"fp8_block", false, true},
                          {"mxfp8", false, true},
                          {"nvfp4", false, false},
                          {"nvfp4", true, true},
                          {"nvfp4_w4a4", false, true},
                          {"nibble_nvfp4", false, false},
                          {"nibble_nvfp4", true, true}}) {
        ThreadPool pool(2);
        TrainerOptions options = with(c.recipe);
        options.precision.row_scaled = c.row_scaled;
        const auto trainer = small_trainer(pool, options, wide_llama());
        const TrainBatch batch = random_batch(2, 96, 48, 21);
        ASSERT_TRUE(trainer->step({&batch, 1}, 0.01).ok());
        const auto check = check_forward(*trainer, batch);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->promised, c.promised) << c.recipe;
        for (const ForwardWay& way : check->ways) EXPECT_GT(way.labels, 100) << way.name;
        EXPECT_EQ(check->mismatches() == 0, c.promised) << c.recipe << (c.row_scaled ? " by row" : "");
    }
}

// With an FP8 KV cache on both sides there is no mismatch either, and K and V are rounded.
TEST(CheckForward, Fp8CachesHaveNoMismatch) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(2, 96, 48, 21);
    const auto compare = [&](const char* recipe, const TrainCache& cache, std::vector<float>& said) {
        TrainerOptions options = with(recipe);
        options.precision.row_scaled = options.precision.recipe == TrainRecipe::nvfp4;
        options.cache = cache;
        const auto trainer = small_trainer(pool, options, wide_llama());
        if (trainer->calibrates()) {
            EXPECT_TRUE(trainer->calibrate({&batch, 1}).ok());
        }
        said.resize(static_cast<size_t>(batch.size()));
        EXPECT_TRUE(trainer->log_probs(batch, said).ok());
        const auto check = check_forward(*trainer, batch);
        EXPECT_TRUE(check.ok()) << check.error().message();
        EXPECT_TRUE(check->promised) << recipe;
        return check->mismatches();
    };
    for (const char* recipe : {"bf16", "fp8_block", "nvfp4"}) {
        std::vector<float> plain, said;
        EXPECT_EQ(compare(recipe, {}, plain), 0);
        for (const TrainCache& cache : {TrainCache{.format = KvFormat::fp8},
                                        {.format = KvFormat::fp8, .queries = true},
                                        {.format = KvFormat::fp8_page}}) {
            EXPECT_EQ(compare(recipe, cache, said), 0) << recipe;
            EXPECT_NE(said, plain) << recipe;
        }
    }
}

// The late phase has the guarantee of its own products.
TEST(CheckForward, TheLatePhaseHasTheGuaranteeOfItsProducts) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(2, 96, 48, 21);
    TrainerOptions options = with("nvfp4");
    options.precision.late_forward = TrainRecipe::fp8_block;
    const auto trainer = small_trainer(pool, options, wide_llama());
    const auto early = check_forward(*trainer, batch);
    ASSERT_TRUE(early.ok());
    EXPECT_FALSE(early->promised);
    EXPECT_GT(early->mismatches(), 0);
    ASSERT_TRUE(trainer->enter_phase(9, 10).ok());
    const auto late = check_forward(*trainer, batch);
    ASSERT_TRUE(late.ok());
    EXPECT_TRUE(late->promised);
    EXPECT_EQ(late->mismatches(), 0);
    std::vector<float> said(static_cast<size_t>(batch.size())), want(said.size());
    ASSERT_TRUE(trainer->log_probs(batch, said).ok());
    ASSERT_TRUE(small_trainer(pool, with("fp8_block"), wide_llama())->log_probs(batch, want).ok());
    EXPECT_EQ(said, want);
    ASSERT_TRUE(trainer->enter_phase(0, 10).ok());
    EXPECT_FALSE(check_forward(*trainer, batch)->promised);
}

// In the last steps the forward products are those of the other recipe, whatever was rounded before.
TEST(LateForward, UsesTheOtherRecipe) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(2, 24, 48, 3);
    const auto said = [&](const TrainPrecision& precision) {
        const auto trainer = small_trainer(pool, {.precision = precision});
        trainer->begin(1, 2);
        EXPECT_TRUE(trainer->step({&batch, 1}, 0).ok());
        std::vector<float> log_probs(batch.tokens.size());
        const auto done = trainer->log_probs(batch, log_probs);
        EXPECT_TRUE(done.ok()) << done.error().message();
        return log_probs;
    };
    for (const TrainRecipe late : {TrainRecipe::bf16, TrainRecipe::fp8_block}) {
        const auto want = said({.recipe = late});
        for (const char* recipe : {"nvfp4", "nvfp4_w4a16", "nvfp4_w4a4"}) {
            TrainPrecision precision = *train_precision_from_name(recipe);
            EXPECT_NE(said(precision), want);
            precision.late_forward = late, precision.late_fraction = 0.5;
            EXPECT_EQ(said(precision), want) << train_recipe_name(late) << ", " << recipe;
        }
    }
}

}  // namespace
}  // namespace nibble::test
