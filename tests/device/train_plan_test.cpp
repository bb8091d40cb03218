// The plans that a GPU trainer makes on the host: places of parameters, order of sums, memory.
#include "train/accumulation.h"
#include "train/device/adapter_unit.h"
#include "train/device/device_optimizer.h"
#include "train/device/device_recipe.h"
#include "train/device/flat_shards.h"
#include "train/device/micro_batch.h"
#include "train/device/piece_run.h"
#include "train/device/sharded_units.h"
#include "train/device/train_weights.h"
#include "train/lora.h"
#include "train/memory_plan.h"
#include "train/small_trainer.h"
#include "train/tiny_families.h"

#include "checkpoint/random_checkpoint.h"
#include "kernels/optimizer_cuda.h"

#include <gmock/gmock.h>

#include <set>

namespace nibble::test {
namespace {

using testing::HasSubstr;

// Returns a sum as text, which shows its order: "((0+1)+(2+3))".
std::string sum_of(int64_t micro_batches, int64_t first = 0) {
    const AccumulationPlan plan = AccumulationPlan::make(micro_batches);
    std::vector<std::string> buffers(static_cast<size_t>(plan.buffers));
    const auto add = [&](std::pair<int, int> a) {
        auto& to = buffers[static_cast<size_t>(a.first)];
        to = "(" + to + "+" + buffers[static_cast<size_t>(a.second)] + ")";
        buffers[static_cast<size_t>(a.second)] = "gone";
    };
    for (size_t i = 0; i < plan.pieces.size(); ++i) {
        buffers[static_cast<size_t>(plan.pieces[i].target)] = std::to_string(first + static_cast<int64_t>(i));
        for (const auto& a : plan.pieces[i].adds) add(a);
    }
    for (const auto& a : plan.last) add(a);
    return buffers[static_cast<size_t>(plan.result)];
}

TEST(AccumulationPlan, AddsLikeABinaryCounter) {
    EXPECT_EQ(sum_of(1), "0");
    EXPECT_EQ(sum_of(2), "(0+1)");
    EXPECT_EQ(sum_of(3), "((0+1)+2)");
    EXPECT_EQ(sum_of(4), "((0+1)+(2+3))");
    EXPECT_EQ(sum_of(6), "(((0+1)+(2+3))+(4+5))");
    EXPECT_EQ(sum_of(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(AccumulationPlan, HoldsFewBuffers) {
    for (const auto& [count, buffers] : {std::pair{1, 1}, {2, 2}, {3, 2}, {4, 3}, {8, 4}, {64, 7}})
        EXPECT_EQ(AccumulationPlan::make(count).buffers, buffers) << count;
}

// Adds the runs of ranks as separate plans, then those that are present, as DeviceRanks::add() does: the result is the
// sum of one process, whatever the number of pieces.
TEST(PieceRun, SumsOfRanksEqualThoseOfOneRank) {
    for (const int size : {1, 2, 4, 8, 3})
        for (int64_t pieces = 1; pieces < 40; ++pieces) {
            std::vector<std::string> nodes;
            int64_t next = 0, most = 0;
            for (int rank = 0; rank < size; ++rank) {
                const PieceRun run = PieceRun::of(pieces, rank, size);
                ASSERT_EQ(run.begin, next);
                ASSERT_EQ(run.end > run.begin, rank < run.present) << pieces << " to " << size;
                next = run.end, most = std::max(most, run.end - run.begin);
                if (rank < run.present) nodes.push_back(sum_of(run.end - run.begin, run.begin));
            }
            ASSERT_EQ(next, pieces);
            for (size_t apart = 1; apart < nodes.size(); apart *= 2)
                for (size_t i = 0; i + apart < nodes.size(); i += 2 * apart)
                    nodes[i] = "(" + nodes[i] + "+" + nodes[i + apart] + ")";
            EXPECT_EQ(nodes[0], sum_of(pieces)) << pieces << " to " << size;
            // With powers of two, pieces are distributed evenly over the ranks.
            if (std::has_single_bit(static_cast<uint64_t>(pieces)) && size != 3) {
                EXPECT_EQ(most, std::max<int64_t>(1, pieces / size));
            }
        }
}

// Gives the same numbers as the tree of the CPU trainer.
TEST(AccumulationPlan, EqualsTheTreeOfRows) {
    ThreadPool pool(1);
    const auto parameters = small_parameters(pool, DType::bf16);
    const std::string name = "model.norm.weight";
    const size_t id = *parameters->id(name), width = parameters->master(id).size();
    for (int64_t count = 1; count < 20; ++count) {
        std::mt19937 random(static_cast<uint32_t>(count));
        std::vector<std::vector<float>> rows(static_cast<size_t>(count), std::vector<float>(width));
        for (auto& row : rows)
            for (float& x : row) x = std::ldexp(static_cast<float>(random()) - 2e9f, int(random() % 16) - 40);
        GradientTree tree(*parameters, "lm_head.weight", false, pool);
        tree.begin_step();
        for (const auto& row : rows) {
            ASSERT_TRUE(tree.add(name, row.data(), 1, std::ssize(row)).ok());
            tree.end_row();
        }
        ASSERT_TRUE(tree.end_step().ok());
        const AccumulationPlan plan = AccumulationPlan::make(count);
        std::vector<std::vector<float>> buffers(static_cast<size_t>(plan.buffers));
        const auto add = [&](std::pair<int, int> a) {
            for (size_t j = 0; j < width; ++j)
                buffers[static_cast<size_t>(a.first)][j] += buffers[static_cast<size_t>(a.second)][j];
        };
        for (size_t i = 0; i < rows.size(); ++i) {
            buffers[static_cast<size_t>(plan.pieces[i].target)] = rows[i];
            for (const auto& a : plan.pieces[i].adds) add(a);
        }
        for (const auto& a : plan.last) add(a);
        const auto want = tree.gradient(id);
        EXPECT_TRUE(std::ranges::equal(buffers[static_cast<size_t>(plan.result)], want)) << count;
    }
}

// Every rank adds its own values; then ranks are added: by runs (Sharding::states), or first the values computed at the
// same time (Sharding::all). Returns the sum as text, which must equal that of one rank.
std::string sum_of_ranks(int64_t pieces, int size, Sharding sharding) {
    const auto owner = piece_owners(pieces, size, sharding);
    if (!owner.ok()) return owner.error().message();
    std::vector<std::vector<std::string>> own(static_cast<size_t>(size));
    for (size_t p = 0; p < owner->size(); ++p) own[static_cast<size_t>((*owner)[p])].push_back(std::to_string(p));
    const auto tree = [](std::vector<std::string> leaves) {
        const AccumulationPlan plan = AccumulationPlan::make(std::ssize(leaves));
        std::vector<std::string> buffers(static_cast<size_t>(plan.buffers));
        const auto add = [&](std::pair<int, int> a) {
            auto& to = buffers[static_cast<size_t>(a.first)];
            to = "(" + to + "+" + buffers[static_cast<size_t>(a.second)] + ")";
        };
        for (size_t i = 0; i < leaves.size(); ++i) {
            buffers[static_cast<size_t>(plan.pieces[i].target)] = leaves[i];
            for (const auto& a : plan.pieces[i].adds) add(a);
        }
        for (const auto& a : plan.last) add(a);
        return buffers[static_cast<size_t>(plan.result)];
    };
    const auto of_ranks = [](std::vector<std::string> nodes) {  // DeviceRanks::add_nodes()
        for (size_t apart = 1; apart < nodes.size(); apart *= 2)
            for (size_t i = 0; i + apart < nodes.size(); i += 2 * apart)
                nodes[i] = "(" + nodes[i] + "+" + nodes[i + apart] + ")";
        return nodes[0];
    };
    std::vector<std::string> level;
    if (sharding == Sharding::states) {
        for (const auto& some : own) level.push_back(tree(some));
        return of_ranks(level);
    }
    for (size_t turn = 0; turn < own[0].size(); ++turn) {
        std::vector<std::string> side_by_side;
        for (const auto& some : own) side_by_side.push_back(some[turn]);
        level.push_back(of_ranks(side_by_side));
    }
    return tree(level);
}

TEST(DealtPieces, AreAddedInTheOrderOfOneRank) {
    for (const Sharding sharding : {Sharding::states, Sharding::all})
        for (int size = 1; size <= 8; ++size)
            for (int64_t pieces = 1; pieces <= 40; ++pieces) {
                if (!piece_owners(pieces, size, sharding).ok()) continue;
                EXPECT_EQ(sum_of_ranks(pieces, size, sharding), sum_of(pieces)) << pieces << " of " << size;
            }
}

TEST(DealtPieces, AreRefusedIfTheirSumsAreNotNodesOfTheTree) {
    struct Row {
        int64_t pieces;
        int size;
        bool states, all;  // distributed over the ranks
    };
    for (const Row& row :
         {Row{4, 2, true, true}, Row{6, 2, false, true}, Row{3, 2, false, false}, Row{3, 3, true, true},
          Row{6, 3, true, false}, Row{12, 4, false, true}, Row{1, 2, false, false}, Row{7, 1, true, true}}) {
        EXPECT_EQ(piece_owners(row.pieces, row.size, Sharding::states).ok(), row.states) << row.pieces << row.size;
        EXPECT_EQ(piece_owners(row.pieces, row.size, Sharding::all).ok(), row.all) << row.pieces << row.size;
    }
    EXPECT_THAT(piece_owners(6, 3, Sharding::all).error().message(),
                HasSubstr("6 micro-batches cannot be divided between 3 ranks"));
}

Result<FlatLayout> layout_of(const Checkpoint& checkpoint, std::shared_ptr<Parameters>& parameters, ThreadPool& pool) {
    NIBBLE_TRY(parameters, Parameters::copy(checkpoint, DType::bf16, pool));
    NIBBLE_TRY(const ModelConfig model, model_config(*parameters));
    NIBBLE_TRY(const ModelParts parts, load_parts(model, *parameters, {}, pool, WeightSource::Mode::outline));
    return FlatLayout::make(*parameters, model, parts);
}

TEST(FlatLayout, GivesEveryParameterAPlaceOfItsOwn) {
    ThreadPool pool(1);
    for (const bool tied : {false, true}) {
        Json config = small_llama();
        config["tie_word_embeddings"] = tied;
        const auto checkpoint = small_checkpoint(config);
        if (tied) checkpoint->remove("lm_head.weight");
        std::shared_ptr<Parameters> parameters;
        const auto layout = layout_of(*checkpoint, parameters, pool);
        ASSERT_TRUE(layout.ok()) << layout.error().message();
        std::vector<std::pair<int64_t, int64_t>> places;
        for (size_t id = 0; id < parameters->count(); ++id) {
            places.emplace_back(layout->at[id], layout->at[id] + std::ssize(parameters->master(id)));
            EXPECT_EQ(parameters->matrix(id), places.back().first < layout->matrix_elements);
        }
        std::ranges::sort(places);
        EXPECT_GE(places.front().first, 0);
        EXPECT_LE(places.back().second, layout->elements);
        for (size_t i = 1; i < places.size(); ++i) EXPECT_LE(places[i - 1].second, places[i].first);
        EXPECT_EQ(layout->head.at == layout->embedding.at, tied);
    }
}

TEST(FlatLayout, StacksMatricesOfOneProduct) {
    ThreadPool pool(1);
    std::shared_ptr<Parameters> parameters;
    const auto layout = layout_of(*small_checkpoint(), parameters, pool);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    ASSERT_EQ(layout->units[0].size(), 2U);  // q, k, v; o
    const FlatMatrix& qkv = layout->units[0][0];
    int64_t at = qkv.at;
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
        const size_t id = *parameters->id(std::string("model.layers.0.self_attn.") + part + ".weight");
        EXPECT_EQ(layout->at[id], at) << part;
        at += std::ssize(parameters->master(id));
    }
    EXPECT_EQ(at, qkv.at + qkv.elements());
}

TEST(FlatLayout, StacksBiasesAndExperts) {
    ThreadPool pool(1);
    std::shared_ptr<Parameters> parameters;
    Json config = tiny("nemotron_h");
    config.update({{"hybrid_override_pattern", "*E-"}, {"attention_bias", true}, {"mlp_bias", true}});
    const auto checkpoint = random_checkpoint(config);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const auto layout = layout_of(**checkpoint, parameters, pool);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    const auto adjacent = [&](int64_t at, const std::vector<std::string>& tensors) {
        for (const std::string& tensor : tensors) {
            const auto id = parameters->id(tensor);
            ASSERT_TRUE(id.ok()) << tensor;
            EXPECT_EQ(layout->at[*id], at) << tensor;
            at += std::ssize(parameters->master(*id));
        }
    };
    const std::string attention = "backbone.layers.0.mixer.", moe = "backbone.layers.1.mixer.";
    adjacent(layout->units[0][0].bias,
             {attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"});
    adjacent(layout->units[0][1].bias, {attention + "o_proj.bias"});
    ASSERT_EQ(layout->units[1].size(), 5U);  // router; first and second products of the experts; the two of the shared
                                             // expert
    adjacent(layout->units[1][0].at, {moe + "gate.weight"});
    std::vector<std::string> in, out;
    for (int e = 0; e < 4; ++e) {
        in.push_back(fmt::format("{}experts.{}.up_proj.weight", moe, e));
        out.push_back(fmt::format("{}experts.{}.down_proj.weight", moe, e));
    }
    adjacent(layout->units[1][1].at, in);
    adjacent(layout->units[1][2].at, out);
    EXPECT_EQ(layout->units[1][1].rows, 4 * 32);
    adjacent(layout->units[1][3].at, {moe + "shared_experts.up_proj.weight"});
    adjacent(layout->units[2][0].bias, {"backbone.layers.2.mixer.up_proj.bias"});
    // Norms that some models read as 1 + w are stored together.
    const int64_t bias = layout->at[*parameters->id(moe + "gate.e_score_correction_bias")];
    ASSERT_EQ(layout->norms.size(), 2U);  // BF16 and FP32
    for (size_t id = 0; id < parameters->count(); ++id) {
        const std::string& name = parameters->tensors()[id].name;
        if (parameters->matrix(id)) continue;
        const auto& norms = layout->norms[0];
        const bool inside = layout->at[id] >= norms.at && layout->at[id] < norms.at + norms.count;
        EXPECT_EQ(inside, name.ends_with("norm.weight") || name.ends_with("norm_f.weight")) << name;
    }
    EXPECT_GE(bias, layout->matrix_elements + layout->rounded_vectors);  // stays FP32
}

// For every linear except routers: the A of linears that read the same rows are stored one after the other, then their
// B; those of experts follow each other.
TEST(FlatLayout, PlacesAdaptersByUnit) {
    ThreadPool pool(1);
    const TrainLora lora{.rank = 8, .alpha = 8};
    for (const char* family : {"qwen3", "qwen3_moe", "deepseek_v3", "nemotron_h"}) {
        const auto base = random_checkpoint(tiny(family));
        ASSERT_TRUE(base.ok()) << base.error().message();
        const auto model = model_config(**base);
        ASSERT_TRUE(model.ok());
        const auto parts = load_parts(*model, **base, {}, pool, WeightSource::Mode::outline);
        ASSERT_TRUE(parts.ok()) << parts.error().message();
        const auto adapters = lora_parameters(parts->blocks, lora, DType::bf16, 1, pool);
        ASSERT_TRUE(adapters.ok()) << adapters.error().message();
        const auto layout = FlatLayout::make_adapters(**adapters, *model, *parts);
        ASSERT_TRUE(layout.ok()) << layout.error().message();
        std::set<std::string> left;
        for (const CheckpointTensor& t : (*adapters)->tensors()) left.insert(t.name);
        int64_t end = 0;
        for (size_t b = 0; b < parts->blocks.size(); ++b) {
            const std::vector<FlatUnit> units = flat_units(parts->blocks[b]);
            ASSERT_EQ(units.size(), layout->units[b].size());
            for (size_t u = 0; u < units.size(); ++u) {
                const FlatUnit& unit = units[u];
                EXPECT_EQ(layout->units[b][u].at, -1);
                const auto of_unit = AdapterUnit::of(unit, lora.rank, **adapters, *layout);
                ASSERT_TRUE(of_unit.ok()) << of_unit.error().message();
                EXPECT_EQ(of_unit->none(), unit.linears[0]->name.ends_with(".gate")) << unit.linears[0]->name;
                if (of_unit->none()) continue;
                EXPECT_EQ(of_unit->blocks.experts, unit.of_mixture ? 4 : 1);
                EXPECT_EQ(of_unit->blocks.experts * of_unit->blocks.rows, layout->units[b][u].rows);
                EXPECT_EQ(of_unit->blocks.narrow_rows(), of_unit->blocks.rows);
                for (const auto& [first, what] : {std::pair{of_unit->a, "A"}, {of_unit->b, "B"}}) {
                    EXPECT_GE(first, end);
                    int64_t at = first;
                    for (const Linear* linear : unit.linears) {
                        const std::string name = fmt::format("{}.lora_{}.weight", linear->name, what);
                        const auto id = (*adapters)->id(name);
                        ASSERT_TRUE(id.ok()) << name;
                        EXPECT_EQ(layout->at[*id], at) << name;
                        at += std::ssize((*adapters)->master(*id));
                        EXPECT_EQ(left.erase(name), 1U);
                    }
                    end = at;
                }
            }
        }
        EXPECT_TRUE(left.empty()) << *left.begin();
        EXPECT_LE(end, layout->matrix_elements);
    }
}

// Each matrix and each section of its norm belongs to one rank, in whole sections; with Sharding::all each rank has a
// share of every part.
TEST(FlatShards, CoverEveryMatrixOnce) {
    ThreadPool pool(1);
    for (const char* family : {"llama", "qwen3", "qwen3_moe", "nemotron_h"})
        for (const Sharding sharding : {Sharding::states, Sharding::all})
            for (const int size : {1, 2, 3, 8}) {
                const auto checkpoint = random_checkpoint(tiny(family));
                ASSERT_TRUE(checkpoint.ok());
                std::shared_ptr<Parameters> parameters;
                const auto layout = layout_of(**checkpoint, parameters, pool);
                ASSERT_TRUE(layout.ok()) << layout.error().message();
                const FlatShards shards = FlatShards::make(*layout, sharding, size);
                const int64_t each = cuda::section_elements(layout->matrix_elements);
                std::vector<int64_t> kept(static_cast<size_t>(size));
                int64_t at = 0;
                int section = 0;
                for (const FlatRun& run : shards.runs()) {
                    EXPECT_EQ(run.begin, at);
                    EXPECT_EQ(run.first_section, section);
                    EXPECT_EQ(run.begin, std::min(layout->matrix_elements, each * section));
                    EXPECT_EQ(run.local, kept[static_cast<size_t>(run.rank)]);
                    kept[static_cast<size_t>(run.rank)] += run.elements();
                    at = run.end;
                    section += run.sections;
                }
                EXPECT_EQ(at, layout->matrix_elements);
                EXPECT_EQ(section, cuda::square_sections);
                for (int r = 0; r < size; ++r) EXPECT_EQ(shards.elements(r), kept[static_cast<size_t>(r)]);
                const auto parts = flat_parts(*layout);
                ASSERT_EQ(parts.size(), layout->units.size() + (layout->tied ? 1 : 2));
                at = 0;
                for (const FlatLayout::Range& part : parts) {
                    EXPECT_EQ(part.at, at);
                    std::vector<int64_t> of_rank(static_cast<size_t>(size));
                    for (const FlatRun& run : shards.within(part.at, part.at + part.count)) {
                        EXPECT_EQ(run.begin, at);
                        at = run.end;
                        of_rank[static_cast<size_t>(run.rank)] += run.elements();
                    }
                    EXPECT_EQ(at, part.at + part.count);
                    if (sharding == Sharding::states) continue;
                    for (const int64_t some : of_rank) EXPECT_LE(some, part.count / size + 2 * each) << family;
                }
            }
}

// A GPU stores its share and two current blocks, whatever the size of the model.
TEST(ShardedWeights, NeedTheMemoryOfAShareAndTwoBlocks) {
    ThreadPool pool(1);
    const auto planned = [&](int layers) {
        Json config = small_llama();
        config.update({{"hidden_size", 128}, {"intermediate_size", 256}, {"num_hidden_layers", layers}});
        const auto parameters = small_parameters(pool, DType::bf16, config);
        const auto model = model_config(*parameters);
        EXPECT_TRUE(model.ok());
        auto weights = TrainWeights::plan(parameters, *model, {.recipe = TrainRecipe::fp8_block}, 1, pool);
        EXPECT_TRUE(weights.ok()) << weights.error().message();
        return *std::move(weights);
    };
    const TrainWeights few = planned(3), many = planned(11);
    const int64_t layer = many.parts()[1].count + many.parts()[2].count;
    EXPECT_LT(many.slot_bytes() - few.slot_bytes(), layer);  // vectors and scales
    EXPECT_GE(many.published_bytes() - few.published_bytes(), 8 * 2 * layer);
    const FlatShards one = FlatShards::make(many.flat(), Sharding::all, 1);
    const int64_t vectors = 4 * many.flat().vector_elements(), all = many.shard_bytes(one, 0) - vectors;
    for (const int size : {2, 4}) {
        const FlatShards shards = FlatShards::make(many.flat(), Sharding::all, size);
        EXPECT_LT(many.shard_bytes(shards, shards.largest()) - vectors, all / size + all / 8) << size;
        EXPECT_LT(ShardedUnits::bytes(many, shards), all) << size;
    }
}

TEST(FlatShards, NameTheGapsBetweenMatrices) {
    ThreadPool pool(1);
    std::shared_ptr<Parameters> parameters;
    Json config = small_llama();
    config["vocab_size"] = 41;  // 41 x 32: not a multiple of 64
    const auto layout = layout_of(*small_checkpoint(config), parameters, pool);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    int64_t in_gaps = 0, in_matrices = 0;
    for (const FlatLayout::Range& part : flat_parts(*layout))
        for (const FlatLayout::Range& gap : flat_gaps(*layout, part.at, part.at + part.count)) in_gaps += gap.count;
    for (size_t id = 0; id < parameters->count(); ++id)
        if (parameters->matrix(id)) in_matrices += std::ssize(parameters->master(id));
    EXPECT_GT(in_gaps, 0);
    EXPECT_EQ(in_gaps + in_matrices, layout->matrix_elements);
}

TEST(FlatLayout, NamesParametersThatAreNotTrained) {
    ThreadPool pool(1);
    Json config = small_llama();
    config["num_hidden_layers"] = 1;
    const auto checkpoint = small_checkpoint(config);
    checkpoint->add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});
    std::shared_ptr<Parameters> parameters;
    const auto layout = layout_of(*checkpoint, parameters, pool);
    ASSERT_FALSE(layout.ok());
    EXPECT_THAT(layout.error().message(),
                HasSubstr("'model.layers.0.self_attn.rotary_emb.inv_freq' cannot be trained"));
}

// The models that a GPU trains, by family: the table of docs/topics/training.md.
TEST(DeviceFamilies, AreTrainedOrRefusedByName) {
    struct Row {
        const char* family;
        const char* pattern;  // pattern of nemotron_h
        const char* refused;  // a part of the error message; null: training is supported
    };
    for (const Row& row :
         {Row{"llama", "", nullptr}, Row{"mistral", "", nullptr}, Row{"mixtral", "", nullptr},
          Row{"qwen2", "", nullptr}, Row{"qwen3", "", nullptr}, Row{"qwen3_moe", "", nullptr},
          Row{"gemma3_text", "", nullptr}, Row{"nemotron_h", "*E-", nullptr}, Row{"deepseek_v3", "", nullptr},
          Row{"nemotron_h", "*EM", nullptr}, Row{"nemotron_h", "MEM", "does not train models without attention yet"}}) {
        Json config = tiny(row.family);
        if (*row.pattern) config["hybrid_override_pattern"] = row.pattern;
        const auto model = model_config(config);
        ASSERT_TRUE(model.ok()) << row.family << ": " << model.error().message();
        const Status status = TrainWeights::check(*model);
        ASSERT_EQ(status.ok(), !row.refused) << row.family;
        if (!row.refused) continue;
        EXPECT_THAT(status.error().message(), HasSubstr(row.refused));
    }
}

TEST(DeviceFamilies, VocabulariesAreLimitedByTheLossKernel) {
    for (const int64_t vocab : {425984, 425992}) {
        Json config = tiny("llama");
        config["vocab_size"] = vocab;
        const auto model = model_config(config);
        ASSERT_TRUE(model.ok()) << model.error().message();
        const Status status = TrainWeights::check(*model);
        ASSERT_EQ(status.ok(), vocab == 425984) << vocab;
        if (status.ok()) continue;
        EXPECT_EQ(status.error().message(), "--device cuda trains vocabularies of up to 425984 tokens, not 425992");
    }
}

TEST(MicroBatch, HasAtMostTheTokensThatKernelsSupport) {
    EXPECT_EQ(*most_rows(32, 0, 1024, 65535), 32);
    EXPECT_EQ(*most_rows(100, 0, 1024, 65535), 50);
    EXPECT_EQ(*most_rows(129, 0, 2048, 65535), 17);
    EXPECT_EQ(*most_rows(200, 63, 1024, 65535), 50);
    for (const auto& [micro_batch, seq, part] :
         {std::tuple{0, 65536, "rows of 65536 tokens are above the limit of 65535 on --device cuda"},
          {64, 1024,
           "micro_batch: 64 rows of 1024 tokens are above the limit of 65535 tokens on --device cuda; use 63 rows"}}) {
        const auto rows = most_rows(200, micro_batch, seq, 65535);
        ASSERT_FALSE(rows.ok());
        EXPECT_THAT(rows.error().message(), HasSubstr(part));
    }
    EXPECT_EQ(TrainWeights::most_tokens(*model_config(tiny("llama"))), 65535);
    // two experts per token
    EXPECT_EQ(TrainWeights::most_tokens(*model_config(tiny("qwen3_moe"))), 32767);
}

TEST(MicroBatch, CutsRowsAndKeepsDocuments) {
    const TrainBatch a = random_batch(5, 7, 30, 1), b = random_batch(2, 4, 30, 2);
    const std::vector<TrainBatch> both{a, b};
    const auto list = cut_micro_batches(both, 2);
    ASSERT_EQ(list.size(), 4U);
    int64_t row = 0;
    for (const MicroBatch& m : list) {
        EXPECT_EQ(m.first_row, row);
        row += m.rows;
        const TrainBatch part = rows_of(*m.batch, m.row, m.rows);
        EXPECT_TRUE(std::ranges::equal(m.ids(), part.tokens));
        EXPECT_TRUE(std::ranges::equal(m.labels(), part.labels));
        EXPECT_TRUE(std::ranges::equal(m.weights(), part.weights));
        const Batch texts = texts_of(m);
        const auto first = first_rows(m);
        ASSERT_EQ(texts.segments().size(), part.documents.size());
        ASSERT_EQ(texts.rows(), m.tokens());
        EXPECT_EQ(texts.wanted(), 0);
        for (size_t d = 0; d < part.documents.size(); ++d) EXPECT_EQ(texts.row(d), part.documents[d]);
        for (int64_t i = 0; i < m.tokens(); ++i)
            EXPECT_EQ(first[static_cast<size_t>(i)], *std::prev(std::ranges::upper_bound(part.documents, i)));
    }
    EXPECT_EQ(row, 7);
}

TEST(MicroBatch, SortsRowsByToken) {
    const std::vector<int32_t> tokens{4, 2, 4, 9, 2, 2};
    const RowsById r = rows_by_id(tokens);
    EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 4, 9}));
    EXPECT_EQ(r.begin, (std::vector<int32_t>{0, 3, 5, 6}));
    EXPECT_EQ(r.order, (std::vector<int32_t>{1, 4, 5, 0, 2, 3}));
}

TrainMemoryPlan plan_of(int64_t rows, Recompute level) {
    return {
        .micro_batch = rows,
        .recompute = level,
        .items = {{"parameters", int64_t{10} << 30}, {"activations", rows * (level == Recompute::none ? 8 : 2) << 30}}};
}

TEST(TrainMemoryPlan, KeepsTheMostActivationsThenTheMostRows) {
    const auto choose = [](int64_t micro_batch, Recompute level, int64_t gib) {
        return choose_memory_plan(12, micro_batch, level, gib << 30, plan_of);
    };
    EXPECT_EQ(choose(0, Recompute::automatic, 200)->micro_batch, 12);
    EXPECT_EQ(choose(0, Recompute::automatic, 60)->micro_batch, 6);
    EXPECT_EQ(choose(0, Recompute::automatic, 60)->recompute, Recompute::none);
    EXPECT_EQ(choose(0, Recompute::automatic, 13)->micro_batch, 1);
    EXPECT_EQ(choose(0, Recompute::automatic, 13)->recompute, Recompute::block);
    EXPECT_EQ(choose(0, Recompute::block, 60)->micro_batch, 12);
    EXPECT_EQ(choose(4, Recompute::automatic, 60)->micro_batch, 4);
    EXPECT_EQ(choose(8, Recompute::automatic, 60)->recompute, Recompute::block);
}

TEST(TrainMemoryPlan, ErrorsContainTheSizes) {
    const auto plan = choose_memory_plan(12, 8, Recompute::none, int64_t{40} << 30, plan_of);
    ASSERT_FALSE(plan.ok());
    const std::string message = plan.error().message();
    for (const char* part : {"micro-batches of 8 rows", "parameters 10.00 GiB", "activations 64.00 GiB",
                             "together 74.00 GiB", "40.00 GiB are free"})
        EXPECT_THAT(message, HasSubstr(part));
}

// Every recipe by name, and with few tokens for each of two GPUs: accepted, or the expected error.
TEST(DevicePrecision, IsAcceptedOrRefusedByName) {
    const std::string few = "has 4095 tokens of a step";
    struct Case {
        const char* name;
        std::string refused, refused_share;
    };
    for (const Case& c : {Case{"bf16"}, Case{"fp8"}, Case{"fp8_block"}, Case{"fp8_delayed"}, Case{"mxfp8"},
                          Case{"nvfp4"}, Case{"nvfp4_no_rht"}, Case{"nibble_nvfp4", "", few},
                          Case{"nibble_nvfp4_late", "", few}, Case{"fp32", "does not train in fp32"}}) {
        const auto precision = train_precision_from_name(c.name);
        ASSERT_TRUE(precision.ok()) << c.name;
        const auto expect = [&](const Status& status, const std::string& words) {
            EXPECT_EQ(status.ok(), words.empty()) << c.name;
            if (!words.empty() && !status.ok()) {
                EXPECT_THAT(status.error().message(), HasSubstr(words));
            }
        };
        expect(check_device_precision(*precision), c.refused);
        expect(check_device_share(*precision, 4095, 2), c.refused_share);
        expect(check_device_share(*precision, 4096, 2), "");
        expect(check_device_share(*precision, 1, 1), "");
    }
}

TEST(DeviceOptimizer, RefusesStatesThatSeveralGpusCannotDivide) {
    EXPECT_TRUE(DeviceOptimizer::check({.kind = OptimizerKind::muon, .bf16_states = true}, 1).ok());
    EXPECT_TRUE(DeviceOptimizer::check({.bf16_states = true}, 2).ok());
    EXPECT_EQ(DeviceOptimizer::check({.kind = OptimizerKind::muon}, 2).error().message(),
              "optimizer.kind: muon needs whole matrices; 2 GPUs divide them");
}

}  // namespace
}  // namespace nibble::test
