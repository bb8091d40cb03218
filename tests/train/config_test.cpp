// Tests the config of a run: every key, the messages for wrong ones, and the switches of precision.
#include "train/train_config.h"

#include "support/files.h"
#include "train/host_recipe.h"
#include "train/small_trainer.h"
#include "train/train_self_test.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include <map>

namespace nibble::test {
namespace {

std::string config_error(const std::string& yaml) {
    const auto config = parse_train_config(yaml, "c.yaml");
    if (!config.ok()) return config.error().message();
    const Status together = check(*config, "c.yaml");
    return together.ok() ? "" : together.error().message();
}

// Keys as other trainers spell them, and the right keys at a wrong place.
TEST(TrainConfigFile, KeysOfOtherTrainersNameOurs) {
    for (const auto& [given, ours] : {std::pair{"lr: 1e-4", "optimizer.learning_rate"},
                                      {"learning_rate: 1e-4", "optimizer.learning_rate"},
                                      {"optimizer: {lr: 1e-4}", "learning_rate"},
                                      {"weight_decay: 0.1", "optimizer.weight_decay"},
                                      {"max_grad_norm: 1", "optimizer.clip"},
                                      {"warmup_steps: 10", "schedule.warmup"},
                                      {"warmup: 10", "schedule.warmup"},
                                      {"max_steps: 10", "steps"},
                                      {"batch_size: 8", "batch"},
                                      {"per_device_train_batch_size: 8", "micro_batch"},
                                      {"max_seq_length: 512", "sequence"},
                                      {"output_dir: out", "output"},
                                      {"model_name_or_path: base", "model"},
                                      {"dataset: {a: b}", "data"},
                                      {"step: 3", "steps"}}) {
        const std::string said = config_error(std::string(given) + "\n");
        const std::string hint = fmt::format("did you mean '{}'?", ours);
        EXPECT_NE(said.find(hint), said.npos) << given << ": " << said;
    }
    TempDir dir;
    const auto folder = read_train_config(dir.path());
    ASSERT_FALSE(folder.ok());
    EXPECT_NE(folder.error().message().find("is a folder; give a YAML file that says 'model: " + dir.path().string()),
              std::string::npos)
        << folder.error().message();
}

TEST(TrainConfigFile, EveryKeyIsRead) {
    const auto c = parse_train_config(R"(
model: base
random_start: true
tokenizer: tok
output: out
resume: true
seed: 7
steps: 1000
batch: 16
sequence: 512
skip_nonfinite: true
data: {folder: shards, cut_documents: false, validation: held}
optimizer: {kind: muon, momentum: 0.9, states: bf16, learning_rate: 1e-3, beta1: 0.8, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.05, clip: 2,
            skip_above: 6, skip_window: 9, outliers: stop}
schedule: {kind: wsd, warmup: 10, decay_fraction: 0.3, final_fraction: 0}
precision: {recipe: nvfp4, scope: mlp, first_bf16: 1, last_bf16: 2, bf16_layers: [3, 5], rotate: false, stochastic: false, square: false,
            four_over_six: true, row_scaled: true, late_forward: bf16, late_fraction: 0.1}
validation: {every: 50, batches: 3}
saving: {every: 100, keep: 5, keep_every: 500}
teacher: {folder: big, cross_entropy: 0.25}
export: {format: nvfp4}
parallel: {shard: all, order: free}
)",
                                      "c.yaml");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->model, "base");
    EXPECT_TRUE(c->random_start && c->resume && c->skip_nonfinite);
    EXPECT_EQ(c->tokenizer, "tok");
    EXPECT_EQ(c->output, "out");
    EXPECT_EQ(c->seed, 7U);
    EXPECT_EQ(c->steps, 1000);
    EXPECT_EQ(c->batch, 16);
    EXPECT_EQ(c->sequence, 512);
    EXPECT_EQ(c->data.folder, "shards");
    EXPECT_EQ(c->teacher.folder, "big");
    EXPECT_EQ(c->export_format, Format::nvfp4);
    EXPECT_EQ(c->sharding, Sharding::all);
    EXPECT_EQ(c->order, GradientOrder::free);
    EXPECT_EQ(c->teacher.cross_entropy, 0.25);
    EXPECT_FALSE(c->data.cut_documents);
    EXPECT_EQ(c->data.validation, "held");
    EXPECT_EQ(c->optimizer.kind, OptimizerKind::muon);
    EXPECT_EQ(c->optimizer.momentum, 0.9);
    EXPECT_TRUE(c->optimizer.bf16_states);
    EXPECT_EQ(c->optimizer.learning_rate, 1e-3);
    EXPECT_EQ(c->optimizer.beta1, 0.8);
    EXPECT_EQ(c->optimizer.beta2, 0.99);
    EXPECT_EQ(c->optimizer.epsilon, 1e-6);
    EXPECT_EQ(c->optimizer.weight_decay, 0.05);
    EXPECT_EQ(c->optimizer.clip, 2);
    EXPECT_EQ(c->optimizer.skip_above, 6);
    EXPECT_EQ(c->optimizer.skip_window, 9);
    EXPECT_TRUE(c->optimizer.stop_at_outlier);
    EXPECT_EQ(c->schedule.kind, ScheduleKind::wsd);
    EXPECT_EQ(c->schedule.warmup, 10);
    EXPECT_EQ(c->schedule.decay_fraction, 0.3);
    EXPECT_EQ(c->schedule.final_fraction, 0);
    const TrainPrecision& p = c->precision;
    EXPECT_EQ(p.recipe, TrainRecipe::nvfp4);
    EXPECT_EQ(p.scope, TrainScope::mlp);
    EXPECT_EQ(p.first_bf16, 1);
    EXPECT_EQ(p.last_bf16, 2);
    EXPECT_EQ(p.bf16_layers, (std::vector<int64_t>{3, 5}));
    EXPECT_FALSE(p.rotate || p.stochastic || p.square);
    EXPECT_TRUE(p.four_over_six && p.row_scaled);
    EXPECT_EQ(p.late_forward, TrainRecipe::bf16);
    EXPECT_EQ(p.late_fraction, 0.1);
    EXPECT_EQ(c->validation.every, 50);
    EXPECT_EQ(c->validation.batches, 3);
    EXPECT_EQ(c->saving.every, 100);
    EXPECT_EQ(c->saving.keep, 5);
    EXPECT_EQ(c->saving.keep_every, 500);
}

TEST(TrainConfigFile, IdentityChangesWithEveryKeyThatDecidesBits) {
    const std::string base = "model: m\nsteps: 50\ndata: {text: t}\n";
    const auto identity = [](const std::string& yaml) {
        const auto c = parse_train_config(yaml, "c.yaml");
        EXPECT_TRUE(c.ok()) << yaml << c.error().message();
        return train_identity(*c);
    };
    for (const char* other :
         {"seed: 2\n", "batch: 9\n", "sequence: 9\n", "optimizer: {learning_rate: 1e-5}\n", "optimizer: {clip: 0}\n",
          "optimizer: {kind: muon}\n", "optimizer: {states: bf16}\n", "optimizer: {skip_above: 4}\n",
          "schedule: {kind: linear}\n", "schedule: {warmup: 3}\n", "precision: nvfp4\n", "random_start: true\n",
          "precision: {recipe: bf16}\nskip_nonfinite: true\n", "parallel: {order: free}\n"})
        EXPECT_NE(identity(base + other), identity(base)) << other;
    EXPECT_NE(identity(base + "precision: nvfp4\n"), identity(base + "precision: nvfp4_no_rht\n"));
    // Emulated products have other bits. A run that was stored before the switch existed has the same identity as one
    // without it.
    EXPECT_NE(identity(base + "precision: {recipe: fp8, emulate: true}\n"), identity(base + "precision: fp8\n"));
    EXPECT_EQ(identity(base + "precision: {recipe: fp8, emulate: false}\n"), identity(base + "precision: fp8\n"));
    for (const char* same : {"output: elsewhere\n", "resume: true\n", "saving: {every: 5}\n", "precision: bf16\n",
                             "parallel: {shard: all}\n"})
        EXPECT_EQ(identity(base + same), identity(base)) << same;
}

// The data are configs, and the identities that commit 8d459c62 stored for them in checkpoints.
TEST(TrainConfigFile, IdentitiesOf8d459c62AreThoseOfTheirConfigs) {
    const auto recorded = read_json_file(test_data("identities_8d459c62.json"));
    ASSERT_TRUE(recorded.ok()) << recorded.error().message();
    ASSERT_EQ((*recorded)["train"].size(), 8u);
    for (const Json& run : (*recorded)["train"]) {
        SCOPED_TRACE(run["config"].get<std::string>());
        const auto config = parse_train_config(run["config"].get<std::string>(), "c.yaml");
        ASSERT_TRUE(config.ok()) << config.error().message();
        const auto stored = parse_json(run["identity"].get<std::string>());
        ASSERT_TRUE(stored.ok());
        const auto today = stored_train_identity(*stored);
        ASSERT_TRUE(today.ok()) << today.error().message();
        EXPECT_EQ(*today, resume_identity(*config));
        Json other = *stored;
        other["seed"] = 1234;
        EXPECT_NE(*stored_train_identity(other), resume_identity(*config));
        // Identities of this version are read unchanged.
        EXPECT_EQ(*stored_train_identity(resume_identity(*config)), resume_identity(*config));
    }
    EXPECT_FALSE(stored_train_identity(Json{{"model", "m"}, {"a_later_key", 1}}).ok());
}

TEST(TrainConfigFile, IdentityIsOfValues) {
    const auto identity = [](const std::string& yaml) {
        const auto c = parse_train_config(yaml, "c.yaml");
        EXPECT_TRUE(c.ok()) << yaml;
        return c.ok() ? resume_identity(*c) : Json();
    };
    const Json base = identity("model: start\ndata: {text: t}\noptimizer: {learning_rate: 3.0e-4}\n");
    for (const char* same : {"model: ./start\ndata: {text: ./t}\n", "model: start/\ndata: {text: t}\nseed: 1\n",
                             "model: start\ndata: {text: t, synthetic: no}\noptimizer: {learning_rate: 0.0003}\n",
                             "model: start\ndata: {text: t}\nprecision: {recipe: bf16}\n"})
        EXPECT_EQ(identity(same), base) << same;
    EXPECT_EQ(identity("model: m\ndata: {text: t}\nprecision: te_nvfp4\n"),
              identity("model: m\ndata: {text: t}\nprecision: {recipe: nvfp4, rotate: yes}\n"));
}

TEST(TrainConfigFile, ErrorsNameTheProblem) {
    const std::string ok = "model: m\ndata: {text: t}\n";
    EXPECT_EQ(config_error(ok), "");
    EXPECT_EQ(config_error(""), "c.yaml: a config must be one mapping");
    EXPECT_EQ(config_error("data: {text: t}\n"), "c.yaml: give exactly one of 'model' and 'shape'");
    EXPECT_EQ(config_error("model: m\nshape: 60m\ndata: {text: t}\n"),
              "c.yaml: give exactly one of 'model' and 'shape'");
    EXPECT_EQ(config_error("teacher: {folder: t, cross_entropy: 2}\n" + ok),
              "c.yaml:1: teacher.cross_entropy must be from 0 to 1, not 2");
    EXPECT_EQ(config_error("export: {format: fp8}\n" + ok),
              "c.yaml:1: export.format must be nvfp4, mxfp8 or fp8_block128, not 'fp8'; did you mean 'mxfp8'?");
    EXPECT_EQ(config_error("model: m\n"), "c.yaml: give exactly one of data.folder, data.text and data.synthetic");
    EXPECT_EQ(config_error(ok + "layers: 2\n"), "c.yaml:3: layers has no effect without shape");
    EXPECT_EQ(config_error(ok + "steps: 5\nschedule: {warmup: 6}\n"),
              "c.yaml: 6 warm-up steps are more than the 5 steps of the run");
    EXPECT_EQ(config_error(ok + "parallel: {shard: weights}\n"),
              "c.yaml:3: parallel.shard must be states or all, not 'weights'");
    EXPECT_EQ(config_error(ok + "saving: {keep: 0}\n"), "");
    EXPECT_EQ(config_error(ok + "parallel: {order: any}\n"),
              "c.yaml:3: parallel.order must be tree or free, not 'any'");
    EXPECT_NE(config_error(ok + "gpus: 2\n").find("c.yaml:3: the config has no key 'gpus'"), std::string::npos);
    EXPECT_NE(config_error(ok + "optimizer: {momentums: 1}\n").find("no key 'momentums'"), std::string::npos);
    EXPECT_EQ(config_error(ok + "optimizer: {kind: sgd}\n"),
              "c.yaml:3: optimizer.kind must be adamw or muon, not 'sgd'");
    EXPECT_EQ(config_error(ok + "lora: {rank: 2}\noptimizer: {kind: muon}\n"),
              "c.yaml: lora: muon cannot train adapters; use adamw");
    EXPECT_EQ(config_error(ok + "optimizer: {skip_above: 0.5}\n"),
              "c.yaml:3: optimizer.skip_above must be above 1, or 0 for none");
    for (const auto& [yaml, why] : std::map<std::string, std::string>{
             {"optimizer: {momentum: 0.9}", "optimizer.momentum has no effect without kind: muon"},
             {"saving: {every: 5, keep: 0}", "saving.every has no effect with keep: 0"},
             {"optimizer: {skip_window: 9}", "optimizer.skip_window has no effect without skip_above"},
             {"optimizer: {skip_above: 0, outliers: stop}", "optimizer.outliers has no effect without skip_above"},
             {"schedule: {decay_fraction: 0.3}", "schedule.decay_fraction has no effect without kind: wsd"},
             {"schedule: {kind: constant, final_fraction: 0}",
              "schedule.final_fraction has no effect with kind: constant"},
             {"saving: {keep_every: 5}", "saving.keep_every has no effect without every"},
             {"lora: {alpha: 0}", "lora.alpha must be from 1e-06 to 1000000, not 0"},
             {"lora: {targets: []}", "lora.targets must be a list of names"}})
        EXPECT_EQ(config_error(ok + yaml + "\n"), "c.yaml:3: " + why);
    EXPECT_EQ(config_error(ok + "optimizer: 3\n"), "c.yaml:3: optimizer must be a map");
    EXPECT_NE(config_error(ok + "precision: fp3\n").find("unknown precision 'fp3'; choices: fp32, bf16, fp8,"),
              std::string::npos);
    EXPECT_EQ(config_error(ok + "precision: {recipe: bf16, rotate: false}\n"),
              "c.yaml:3: precision.rotate has no effect with recipe bf16");
    EXPECT_EQ(config_error(ok + "precision: {recipe: mxfp8, rank: 3}\n"),
              "c.yaml:3: precision.rank has no effect with recipe mxfp8");
    EXPECT_EQ(config_error(ok + "precision: {scope: mlp}\n"),
              "c.yaml:3: precision.scope has no effect with recipe bf16");
    EXPECT_EQ(
        config_error(ok + "precision: {recipe: nvfp4_w4a4, row_scaled: true}\n"),
        "c.yaml:3: precision.row_scaled has no effect with weights_only or stored_inputs, which decide how inputs are "
        "rounded");
    EXPECT_EQ(config_error(ok + "precision: {recipe: nvfp4_w4a16, stored_inputs: true}\n"),
              "c.yaml:3: precision.stored_inputs has no effect with weights_only");
    EXPECT_EQ(config_error(ok + "precision: {recipe: nvfp4, amax_history: 3}\n"),
              "c.yaml:3: precision.amax_history has no effect without stored_inputs");
    for (const auto& [yaml, why] : std::map<std::string, std::string>{
             {"{recipe: nvfp4, four_over_six: true}",
              "four_over_six has no effect on blocks of 16x16, which have one candidate scale; add square: false"},
             {"{recipe: nvfp4_w4a16, row_scaled: true}",
              "row_scaled has no effect with weights_only or stored_inputs, which decide how inputs are rounded"},
             {"{recipe: nvfp4_w4a4, stochastic: true}",
              "stochastic has no effect with weights_only or stored_inputs: gradients stay in BF16"},
             {"{recipe: nvfp4_w4a4, passes: backward}",
              "passes has no effect: nvfp4_w4a4 quantizes only the forward pass"},
             {"{recipe: te_fp8_delayedscaling, passes: backward}",
              "passes backward: the scales of te_fp8_delayedscaling follow from a forward pass that is not quantized; "
              "use "
              "fp8"},
             {"{recipe: nibble_nvfp4_late, passes: backward}",
              "passes backward: there are no quantized forward products for late_forward to replace"},
             {"{recipe: nvfp4, passes: forward, rotate: false}", "rotate has no effect with passes: forward"},
             {"{recipe: nibble_nvfp4, passes: backward, rank: 4}", "rank has no effect with passes: backward"},
             {"{recipe: nvfp4, passes: none}", "passes must be both, forward or backward, not 'none'"},
             {"{recipe: fp8, late_fraction: 0.5}", "late_fraction has no effect without late_forward"},
             {"{recipe: fp8, late_step: 3}", "late_step has no effect without late_forward"},
             {"{recipe: fp8, late_forward: bf16, late_step: 3, late_fraction: 0.5}",
              "late_fraction has no effect with late_step"}})
        EXPECT_EQ(config_error(ok + "precision: " + yaml + "\n"), "c.yaml:3: precision." + why);
    EXPECT_EQ(config_error(ok + "optimizer: {outliers: stop}\n"),
              "c.yaml:3: optimizer.outliers has no effect without skip_above");
    EXPECT_EQ(config_error(ok + "precision: {recipe: fp8, bf16_layers: 3}\n"),
              "c.yaml:3: precision.bf16_layers must be a list of layers");
    EXPECT_EQ(config_error(ok + "precision: {recipe: fp8, scope: head}\n"),
              "c.yaml:3: precision.scope must be mlp or all, not 'head'");
    EXPECT_EQ(config_error(ok + "precision: {recipe: fp8, late_forward: nvfp4}\n"),
              "c.yaml:3: precision.late_forward must be bf16 or fp8_block, not 'nvfp4'");
}

TEST(TrainPrecisionNames, ThoseOfMaxTextAreKnown) {
    for (const auto& [other, own] : {std::pair{"te_fp8_currentscaling", "fp8"},
                                     {"te_fp8_delayedscaling", "fp8_delayed"},
                                     {"te_mxfp8", "mxfp8"},
                                     {"te_nvfp4", "nvfp4"},
                                     {"te_nvfp4_no_rht", "nvfp4_no_rht"}}) {
        const auto a = train_precision_from_name(other), b = train_precision_from_name(own);
        ASSERT_TRUE(a.ok() && b.ok());
        EXPECT_EQ(train_precision_json(*a), train_precision_json(*b));
    }
    EXPECT_TRUE(train_precision_from_name("nvfp4")->rotate);
    EXPECT_FALSE(train_precision_from_name("nvfp4_no_rht")->rotate);
    EXPECT_EQ(train_precision_from_name("nibble_nvfp4_late")->late_forward, TrainRecipe::fp8_block);
    for (const char* name : {"bf16", "nvfp4", "nvfp4_no_rht", "nibble_nvfp4"})
        for (const uint64_t seed : {1u, 2u, 77u})
            EXPECT_TRUE(train_self_test(*train_precision_from_name(name), seed).ok()) << name << " " << seed;
}

// Failures that gave no error in other programs: zeros, rounding to nearest, a dither twice as wide.
TEST(TrainSelfTest, SeesRoundingThatIsWrong) {
    std::vector<double> coin, nearest, wide, constant;
    for (int i = 0; i < 16384; ++i) {
        const double u = (i * 7919 % 16384 + 0.5) / 16384;
        coin.push_back(u < 0.4 ? 2.0 : 1.5);  // random rounding of 1.7
        nearest.push_back(1.5);
        wide.push_back(u < 0.7 / 1.5 ? 2.5 : 1.0);
        constant.push_back(1.7);
    }
    EXPECT_TRUE(check_roundings(1.7f, coin).ok());
    EXPECT_FALSE(check_roundings(1.7f, nearest).ok());
    EXPECT_FALSE(check_roundings(1.7f, wide).ok());
    EXPECT_FALSE(check_roundings(1.7f, constant).ok());
    EXPECT_FALSE(check_roundings(1.7f, std::vector<double>(100, NAN)).ok());
    EXPECT_TRUE(check_codes(std::vector<float>{1, 0, -3, 2}).ok());
    EXPECT_FALSE(check_codes(std::vector<float>(64, 0.0f)).ok());
}

// The late phase covers the last part of the steps, and only forward products.
TEST(TrainRules, LateForwardIsForwardAlone) {
    TrainPrecision p = *train_precision_from_name("nvfp4");
    p.late_forward = TrainRecipe::bf16;
    const UnitPlace place{.layer = 1, .layers = 4, .mlp = true};
    const UnitRules early = unit_rules(p, place, false), late = unit_rules(p, place, true);
    EXPECT_EQ(early.x.format, CastFormat::nvfp4);
    EXPECT_EQ(late.x.format, CastFormat::bf16);
    EXPECT_EQ(rule_text(late.dy_t), rule_text(early.dy_t));
    EXPECT_EQ(rule_text(late.w_back), rule_text(early.w_back));

    ThreadPool pool(2);
    TrainerOptions options{.precision = p};
    const auto trainer = small_trainer(pool, options);
    const TrainBatch batch = random_batch(2, 32, 48, 2);
    for (int64_t step = 0; step < 10; ++step) {  // 18 % of 10 steps are the last two
        trainer->begin(step, 10);
        ASSERT_TRUE(trainer->backward({&batch, 1}).ok());
        EXPECT_EQ(trainer->products().replaces(trainer->model().blocks()[0].mixer().units()[0]), step < 8) << step;
    }
}

TEST(LateForward, BeginsAtItsStep) {
    const TrainPrecision p{.recipe = TrainRecipe::fp8, .late_forward = TrainRecipe::bf16, .late_step = 3};
    for (const int64_t steps : {0, 10, 100})
        for (const int64_t step : {0, 2, 3, 9})
            EXPECT_EQ(late_phase(p, step, steps), step >= 3) << step << " " << steps;
}

TEST(TrainRules, LayersAtTheEndsStayBf16) {
    TrainPrecision p = *train_precision_from_name("fp8");
    p.first_bf16 = 1, p.last_bf16 = 2;
    for (int64_t layer = 0; layer < 6; ++layer)
        EXPECT_EQ(unit_rules(p, {.layer = layer, .layers = 6}, false).quantized, layer >= 1 && layer < 4) << layer;
    p.bf16_layers = {2};
    for (int64_t layer = 0; layer < 6; ++layer)
        EXPECT_EQ(unit_rules(p, {.layer = layer, .layers = 6}, false).quantized, layer == 1 || layer == 3) << layer;
    ThreadPool pool(1);
    p.bf16_layers = {3};
    const auto beyond = Trainer::create(small_parameters(pool, DType::bf16), {.precision = p}, pool);
    ASSERT_FALSE(beyond.ok());
    EXPECT_EQ(beyond.error().message(), "precision: bf16_layers has layer 3, but the model has 3 layers");
    p.bf16_layers.clear();
    p.last_bf16 = 3;
    const auto made = Trainer::create(small_parameters(pool, DType::bf16), {.precision = p}, pool);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().message(), "precision: 1 first and 3 last layers in BF16, but the model has 3 layers");
}

// TransformerEngine's update, written out: the scale follows from the largest maximum of the last `length` steps.
TEST(DelayedScaling, FollowsTheLargestOfTheHistory) {
    const std::vector<float> seen{1, 4, 2, 0, 0.5f, 0.25f, 0.25f, 0.25f, 3};
    for (const size_t length : {1u, 3u, 8u}) {
        DelayedScale d;
        d.history.resize(length);
        std::vector<float> past;
        float scale = 1;
        for (const float s : seen) {
            d.seen = s;
            d.end_step();
            if (s > 0) {
                past.push_back(s);
                const size_t from = past.size() > length ? past.size() - length : 0;
                scale = 448 / *std::max_element(past.begin() + static_cast<std::ptrdiff_t>(from), past.end());
            }
            EXPECT_EQ(d.scale, scale) << length;
        }
    }
    DelayedScale d;
    d.history.resize(4);
    d.seen = INFINITY;
    d.end_step();
    EXPECT_EQ(d.scale, 1.0f);
}

// Held updates keep the scale. The next update that is not held includes their maxima.
TEST(DelayedScale, StoredInputsHaveTheScaleAmaxOverTheLargest) {
    DelayedScale d{.history = {0, 0}, .scale = 0, .largest = 2688, .stored = true};
    const auto step = [&](float seen, bool hold) {
        d.seen = seen;
        d.end_step(hold);
        return d.scale;
    };
    EXPECT_EQ(step(0, true), 0);
    EXPECT_EQ(step(0, false), 1);  // only zeros
    EXPECT_EQ(step(3, false), 3.0f / 2688);
    EXPECT_EQ(step(9, true), 3.0f / 2688);
    EXPECT_EQ(step(5, true), 3.0f / 2688);
    EXPECT_EQ(step(1, false), 9.0f / 2688);
    EXPECT_EQ(step(1, false), 9.0f / 2688);
    EXPECT_EQ(step(1, false), 1.0f / 2688);
    EXPECT_EQ(step(1e-45f, false), 1.0f / 2688);
    EXPECT_EQ(step(1e-45f, false), FLT_MIN);  // readers require a normal number
}

}  // namespace
}  // namespace nibble::test
