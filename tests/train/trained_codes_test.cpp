// Tests exports in training's own codes. A reader gets the weights of the training forward pass, and, if the format
// describes the rounding of inputs, its log-probabilities.
#include "train/small_trainer.h"

#include "checkpoint/convert.h"
#include "kernels/quantize.h"
#include "support/files.h"
#include "train/check_forward.h"
#include "train/phase_weights.h"
#include "train/tiny_families.h"
#include "train/train_shapes.h"
#include "train/trained_codes.h"

#include <map>
#include <set>

namespace nibble::test {
namespace {

Json tile_llama() {
    Json config = small_llama();
    config["hidden_size"] = 128;
    config["intermediate_size"] = 256;
    config["num_hidden_layers"] = 2;
    config["head_dim"] = 64;
    return config;
}

TrainPrecision nv_with(bool square, bool four_over_six, const std::string& recipe = "nvfp4") {
    TrainPrecision p = *train_precision_from_name(recipe);
    p.square = square;
    p.four_over_six = four_over_six;
    p.rank = 0;
    p.attention_fp8 = false;
    return p;
}

std::unique_ptr<Trainer> trained(ThreadPool& pool, const TrainPrecision& precision, const Json& config = tile_llama()) {
    auto trainer = small_trainer(pool, {.precision = precision}, config);
    const TrainBatch batch = random_batch(2, 24, 48, 6);
    trainer->begin(0, 3);
    for (int s = 0; s < 3; ++s) {
        const auto step = trainer->step({&batch, 1}, 0.01);
        EXPECT_TRUE(step.ok()) << step.error().message();
    }
    return trainer;
}

std::shared_ptr<const Checkpoint> exported(Trainer& trainer, const std::shared_ptr<Parameters>& parameters,
                                           const std::filesystem::path& out, ThreadPool& pool) {
    const auto codes = TrainedCodes::create(parameters, trainer.products(), pool);
    EXPECT_TRUE(codes.ok()) << codes.error().message();
    if (!codes.ok()) return nullptr;
    const auto report = convert(**codes, {.to = (*codes)->target(), .out = out}, pool, {});
    EXPECT_TRUE(report.ok()) << report.error().message();
    if (!report.ok()) return nullptr;
    auto read = Checkpoint::open(out);
    EXPECT_TRUE(read.ok()) << read.error().message();
    return read.ok() ? *std::move(read) : nullptr;
}

std::shared_ptr<Parameters> shared(Trainer& trainer) { return {std::shared_ptr<void>(), &trainer.parameters()}; }

// Decodes an element of the operand.
float used_weight(const CastOperand& o, int64_t row, int64_t col) {
    const float value = o.values[static_cast<size_t>(row * o.cols + col)];
    if (!o.block_scales.empty()) return value * o.block_scales[static_cast<size_t>(row * (o.cols / 128) + col / 128)];
    return value * (o.scale[0] * (1.0f / o.divisor));
}

TEST(TrainedCodes, AReaderDecodesTheWeightsOfTheTrainingForward) {
    const std::vector<std::pair<std::string, TrainPrecision>> cases{
        {"nvfp4", nv_with(true, false)},
        {"nvfp4 rows", nv_with(false, false)},
        {"nvfp4 4/6", nv_with(false, true)},
        {"nibble_nvfp4 without its term", nv_with(false, true, "nibble_nvfp4")},
        {"mxfp8", *train_precision_from_name("mxfp8")},
        {"fp8_block", *train_precision_from_name("fp8_block")},
        {"nibble_nvfp4_late", *train_precision_from_name("nibble_nvfp4_late")}};
    for (const auto& [name, precision] : cases) {
        ThreadPool pool(2);
        TempDir folder;
        const auto trainer = trained(pool, precision);
        const auto read = exported(*trainer, shared(*trainer), folder / "out", pool);
        ASSERT_TRUE(read) << name;
        int64_t compared = 0, apart = 0;
        for (size_t u = 0; u < trainer->products().units(); ++u) {
            const ForwardWeight w = trainer->products().forward_weight(u);
            if (!w.rules.quantized) continue;
            const CastOperand o = trainer->products().forward_operand(u, pool);
            for (const ForwardWeight::Part& part : w.parts) {
                const auto tensors = read->tensors();
                const auto t = std::ranges::find(tensors, part.name + ".weight", &CheckpointTensor::name);
                ASSERT_NE(t, tensors.end()) << part.name;
                ASSERT_TRUE(t->quantized()) << part.name;
                QuantMatrix scratch;
                const auto view = read->read_quant(static_cast<size_t>(t - tensors.begin()), 0, t->rows(), scratch);
                ASSERT_TRUE(view.ok()) << view.error().message();
                std::vector<float> decoded(static_cast<size_t>(t->rows() * t->cols()));
                (*select_quantize_kernels())->decode(*view, decoded.data());
                for (int64_t r = 0; r < t->rows(); ++r)
                    for (int64_t c = 0; c < t->cols(); ++c, ++compared) {
                        const float want = used_weight(o, part.first_row + r, c);
                        const float got = decoded[static_cast<size_t>(r * t->cols() + c)];
                        // NVFP4 readers multiply the scales first; training multiplies the value by its block scale
                        // first.
                        apart += !(std::abs(got - want) <= std::abs(want) * 0x1p-23f);
                    }
            }
        }
        EXPECT_GT(compared, 100000) << name;
        EXPECT_EQ(apart, 0) << name;
    }
}

// Like the export of a GPU trainer: from the parameters and the recipe, without the trainer's products.
TEST(TrainedCodes, TheParametersAloneGiveTheSameCodes) {
    for (const char* recipe : {"nvfp4", "nvfp4_w4a16", "nvfp4_w4a4", "mxfp8", "fp8_block", "nibble_nvfp4_late"}) {
        ThreadPool pool(2);
        const TrainPrecision precision = *train_precision_from_name(recipe);
        const auto trainer = trained(pool, precision);
        const Model& model = trainer->model();
        const auto alone = PhaseWeights::make(model.blocks(), model.head(), model.config(), shared(*trainer), precision,
                                              late_phase(precision, 2, 3), *trainer->products().input_scales());
        ASSERT_TRUE(alone.ok()) << alone.error().message();
        const auto want = TrainedCodes::create(shared(*trainer), trainer->products(), pool);
        const auto got = TrainedCodes::create(shared(*trainer), *alone, pool);
        ASSERT_TRUE(want.ok() && got.ok()) << recipe;
        EXPECT_EQ((*got)->format(), (*want)->format());
        int64_t quantized = 0;
        for (size_t i = 0; i < (*want)->tensors().size(); ++i) {
            const CheckpointTensor &a = (*want)->tensors()[i], &b = (*got)->tensors()[i];
            EXPECT_EQ(a.format, b.format) << recipe << ", " << a.name;
            EXPECT_EQ(a.activation, b.activation) << a.name;
            EXPECT_EQ(a.input_scale, b.input_scale) << a.name;
            EXPECT_EQ(a.input_scale.has_value(), recipe == std::string("nvfp4_w4a4") && a.quantized()) << a.name;
            EXPECT_EQ(a.listed_module, b.listed_module) << a.name;
            if (!a.quantized()) continue;
            QuantMatrix scratch;
            const auto x = (*want)->read_quant(i, 0, a.rows(), scratch),
                       y = (*got)->read_quant(i, 0, a.rows(), scratch);
            ASSERT_TRUE(x.ok() && y.ok());
            const auto same = [&](const auto* p, const auto* q, int64_t count) {
                return (!p && !q) || (p && q && std::equal(p, p + count, q));
            };
            EXPECT_TRUE(same(x->codes, y->codes, code_bytes(a.format, a.rows(), a.cols()))) << a.name;
            EXPECT_TRUE(same(x->block_scales, y->block_scales, block_scale_bytes(a.format, a.rows(), a.cols())));
            EXPECT_TRUE(same(x->float_scales, y->float_scales, float_scale_count(a.format, a.rows(), a.cols())));
            EXPECT_EQ(x->tensor_scale, y->tensor_scale);
            ++quantized;
        }
        EXPECT_EQ(quantized, 14) << recipe;
    }
}

TEST(TrainedCodes, TheEngineServesTheBitsOfTheTrainingForward) {
    for (const char* recipe : {"fp8_block", "mxfp8", "nvfp4_w4a16", "nvfp4_w4a4"}) {
        ThreadPool pool(2);
        TempDir folder;
        const auto trainer = trained(pool, *train_precision_from_name(recipe));
        const auto read = exported(*trainer, shared(*trainer), folder / "out", pool);
        ASSERT_TRUE(read);
        const auto engine = Model::load(read, {}, pool);
        ASSERT_TRUE(engine.ok()) << engine.error().message();
        const TrainBatch batch = random_batch(3, 40, 48, 2);
        const auto check = check_forward(*trainer, batch, *engine);
        ASSERT_TRUE(check.ok()) << check.error().message();
        for (const ForwardWay& way : check->ways) {
            EXPECT_GT(way.labels, 50);
            EXPECT_EQ(way.mismatches, 0) << recipe << ", " << way.name << ": " << way.apart;
        }
        // The parameters rounded to BF16 are another model.
        const auto plain = Model::load(shared(*trainer), {}, pool);
        ASSERT_TRUE(plain.ok());
        const auto other = check_forward(*trainer, batch, *plain);
        ASSERT_TRUE(other.ok());
        EXPECT_GT(other->mismatches(), 50);
        // Another scale of the first layer's inputs also changes the model.
        std::vector<float> scales = *trainer->products().input_scales();
        if (scales.empty()) continue;
        scales[0] *= 1.02f;
        ASSERT_TRUE(trainer->recipe().set_input_scales(scales).ok());
        const auto nudged = check_forward(*trainer, batch, *engine);
        ASSERT_TRUE(nudged.ok());
        EXPECT_GT(nudged->mismatches(), 50);
    }
}

// Routed experts of a layer share an input_scale, including experts without tokens.
TEST(TrainedCodes, ExpertsWithoutTokensAreServedToo) {
    for (const char* family : {"qwen3_moe", "nemotron_h", "mixtral", "deepseek_v3"}) {
        SCOPED_TRACE(family);
        ThreadPool pool(2);
        TempDir folder;
        Json config = tiny(family);
        if (config.contains("q_lora_rank")) config["q_lora_rank"] = 32;  // whole blocks
        const auto parameters = random_start(config, DType::bf16, 7, pool);
        ASSERT_TRUE(parameters.ok()) << parameters.error().message();
        const auto trainer =
            Trainer::create(*parameters, {.precision = *train_precision_from_name("nvfp4_w4a4")}, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const TrainBatch one = random_batch(1, 1, 48, 6);
        ASSERT_TRUE((*trainer)->calibrate({&one, 1}).ok());
        const auto read = exported(**trainer, *parameters, folder / "out", pool);
        ASSERT_TRUE(read);
        const Model& model = (*trainer)->model();
        const StepProducts& products = (*trainer)->products();
        const auto alone =
            PhaseWeights::make(model.blocks(), model.head(), model.config(), *parameters,
                               *train_precision_from_name("nvfp4_w4a4"), false, *products.input_scales());
        ASSERT_TRUE(alone.ok()) << alone.error().message();
        for (size_t u = 0; u < products.units(); ++u)
            EXPECT_EQ(alone->forward_weight(u).input_scale, products.forward_weight(u).input_scale) << u;
        std::map<std::string, std::set<float>> of_experts;
        for (const CheckpointTensor& t : read->tensors()) {
            if (!t.quantized()) continue;
            ASSERT_TRUE(t.input_scale) << t.name;
            EXPECT_EQ(t.activation, ActivationFormat::nvfp4);
            const size_t at = t.name.find(".experts.");
            if (at != std::string::npos)
                of_experts[t.name.substr(0, at) + t.name.substr(t.name.find('.', at + 9))].insert(*t.input_scale);
        }
        EXPECT_GT(of_experts.size(), 1u);
        for (const auto& [name, scales] : of_experts) EXPECT_EQ(scales.size(), 1u) << name;
        const auto engine = Model::load(read, {}, pool);
        ASSERT_TRUE(engine.ok()) << engine.error().message();
        const auto check = check_forward(**trainer, random_batch(2, 40, 48, 2), *engine);
        ASSERT_TRUE(check.ok()) << check.error().message();
        EXPECT_EQ(check->mismatches(), 0);
    }
}

TEST(TrainedCodes, RefusesWhatNoCheckpointCanStore) {
    ThreadPool pool(1);
    const auto refusal = [&](const TrainPrecision& precision, const Json& config) {
        const auto trainer = small_trainer(pool, {.precision = precision}, config);
        const auto format = TrainedCodes::format_of(trainer->products());
        return format.ok() ? "" : format.error().message();
    };
    EXPECT_EQ(refusal({}, tile_llama()), "export: the forward products of this recipe quantize nothing");
    EXPECT_EQ(refusal(*train_precision_from_name("fp8"), tile_llama()),
              "export: 'model.layers.0.self_attn.q_proj' is E4M3 tensor in the forward product; only nvfp4, mxfp8 and "
              "fp8_block can be exported");
    TrainPrecision nibble = *train_precision_from_name("nibble_nvfp4");
    EXPECT_EQ(
        refusal(nibble, tile_llama()),
        "export: 'model.layers.0.mlp.gate_proj' has a BF16 term of rank 16, which no checkpoint format can store; "
        "rank: 0 trains without it, nibble_nvfp4_late ends without it");
    nibble.rank = 0;
    EXPECT_EQ(refusal(nibble, tile_llama()),
              "export: 'model.layers.0.mlp.gate_proj' is nvfp4, but others are fp8_block128; an export has one format");
    EXPECT_EQ(refusal(*train_precision_from_name("fp8_block"), small_llama()),
              "export: fp8_block128 has one scale per 128 rows, but 'model.layers.0.self_attn.k_proj' begins in row 64 "
              "of its layer's product");
    const auto unseen = small_trainer(pool, {.precision = *train_precision_from_name("nvfp4_w4a4")}, tile_llama());
    EXPECT_EQ(TrainedCodes::create(shared(*unseen), unseen->products(), pool).error().message(),
              "export: 'model.layers.0.self_attn.q_proj' has no input_scale before the first step");
    Json narrow = tile_llama();
    narrow["intermediate_size"] = 40;
    EXPECT_EQ(refusal(nv_with(false, false), narrow),
              "export: 'model.layers.0.mlp.down_proj' has 40 inputs, which is not a multiple of the blocks of nvfp4");
}

}  // namespace
}  // namespace nibble::test
