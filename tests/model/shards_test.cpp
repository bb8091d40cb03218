#include "architecture/shards.h"

#include "base/json.h"
#include "model/cpu/model.h"
#include "model/family_folders.h"

#include <gmock/gmock.h>

#include <fstream>

namespace nibble::test {
namespace {

using testing::HasSubstr;

ModelConfig config_of(const std::string& text) { return *model_config(*parse_json(text)); }

ModelConfig family_config(const std::filesystem::path& folder) {
    const auto checkpoint = Checkpoint::open(folder);
    EXPECT_TRUE(checkpoint.ok());
    const auto config = model_config(**checkpoint);
    EXPECT_TRUE(config.ok()) << folder;
    return config.ok() ? *config : ModelConfig();
}

const TensorEntry& tensor_named(const std::vector<TensorEntry>& list, std::string_view name) {
    const auto found = std::ranges::find(list, name, &TensorEntry::name);
    EXPECT_NE(found, list.end()) << name;
    return *found;
}

using Rows = std::vector<RowRange>;

constexpr const char* llama_8b = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 500000.0, "hidden_act": "silu"})";

TEST(Shards, LlamaDividesHeadsMlpAndVocabulary) {
    const auto list = sharded_tensors(config_of(llama_8b));
    const std::string layer = "model.layers.1.";
    EXPECT_EQ(rank_rows(tensor_named(list, layer + "self_attn.q_proj.weight"), 8, 3), (Rows{{1536, 2048}}));
    EXPECT_EQ(rank_rows(tensor_named(list, layer + "self_attn.k_proj.weight"), 8, 3), (Rows{{384, 512}}));
    EXPECT_EQ(rank_rows(tensor_named(list, layer + "self_attn.o_proj.weight"), 8, 3), (Rows{{1536, 2048}}));
    EXPECT_EQ(rank_rows(tensor_named(list, layer + "mlp.gate_proj.weight"), 4, 1), (Rows{{3584, 7168}}));
    EXPECT_EQ(rank_rows(tensor_named(list, "lm_head.weight"), 2, 1), (Rows{{64128, 128256}}));
    EXPECT_EQ(rank_rows(tensor_named(list, "model.embed_tokens.weight"), 8, 3), (Rows{{0, 128256}}));
    EXPECT_EQ(rank_rows(tensor_named(list, layer + "input_layernorm.weight"), 8, 3), (Rows{{0, 4096}}));
}

TEST(Shards, RanksBeyondTheKeyHeadsShareThem) {
    const auto list = sharded_tensors(config_of(llama_8b));
    const TensorEntry& keys = tensor_named(list, "model.layers.0.self_attn.k_proj.weight");
    ASSERT_TRUE(check_ranks(list, 16).ok());
    EXPECT_EQ(rank_rows(keys, 16, 4), (Rows{{256, 384}}));
    EXPECT_EQ(rank_rows(keys, 16, 5), (Rows{{256, 384}}));
}

TEST(Shards, ADegreeThatDoesNotFitIsRefusedWithThoseThatDo) {
    const auto list = sharded_tensors(config_of(llama_8b));
    const Status refused = check_ranks(list, 3);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(
        refused.error().message(),
        "3 ranks: model.layers.0.self_attn.q_proj.weight has 32 attention heads; numbers of ranks that work, up to "
        "64: 1, 2, 4, 8, 16, 32");
    EXPECT_FALSE(check_ranks(list, 0).ok());
    EXPECT_FALSE(check_ranks(list, 64).ok());
}

// Every row is on some rank, and on one rank only unless all ranks have it or ranks share a head.
void expect_complete(const TensorEntry& tensor, int ranks) {
    int64_t rows = tensor.shape.front(), total = 0;
    for (const RowSegment& s : tensor.segments) total += s.rows;
    ASSERT_EQ(total, rows) << tensor.name;
    std::vector<int> owners(static_cast<size_t>(rows));
    for (int rank = 0; rank < ranks; ++rank) {
        int64_t last = 0;
        for (const RowRange& range : rank_rows(tensor, ranks, rank)) {
            ASSERT_LT(range.begin, range.end) << tensor.name;
            ASSERT_GE(range.begin, last) << tensor.name;
            ASSERT_LE(range.end, rows) << tensor.name;
            last = range.end;
            for (int64_t row = range.begin; row < range.end; ++row) ++owners[static_cast<size_t>(row)];
        }
    }
    int64_t row = 0;
    for (const RowSegment& s : tensor.segments) {
        int expected = 1;
        if (s.division == RowSegment::Division::none) expected = ranks;
        if (s.division == RowSegment::Division::copied && s.parts < ranks) expected = ranks / static_cast<int>(s.parts);
        for (int64_t end = row + s.rows; row < end; ++row)
            ASSERT_EQ(owners[static_cast<size_t>(row)], expected) << tensor.name << " row " << row << ", " << ranks;
    }
}

TEST(Shards, RanksOfEveryFamilyHaveEveryRow) {
    int families = 0, divided = 0;
    for (const auto& entry : std::filesystem::directory_iterator(family_root())) {
        SCOPED_TRACE(entry.path().filename().string());
        if (!entry.is_directory()) continue;
        const auto list = sharded_tensors(family_config(entry.path()));
        ++families;
        ASSERT_TRUE(check_ranks(list, 1).ok());
        for (int ranks = 1; ranks <= 8; ++ranks) {
            const Status allowed = check_ranks(list, ranks);
            EXPECT_EQ(allowed.ok(), allows_ranks(list, ranks));
            if (!allowed.ok()) {
                EXPECT_THAT(allowed.error().message(), HasSubstr("numbers of ranks that work, up to 64: 1"));
                continue;
            }
            divided += ranks > 1;
            for (const TensorEntry& tensor : list) expect_complete(tensor, ranks);
        }
    }
    EXPECT_GT(families, 30);
    EXPECT_GE(divided, 40);  // tiny models allow few degrees
}

TEST(Shards, MambaDividesItsFivePiecesSeparately) {
    const auto list = sharded_tensors(config_of(R"({"model_type": "nemotron_h", "hidden_size": 64, "vocab_size": 256,
        "num_hidden_layers": 1, "hybrid_override_pattern": "M", "mamba_num_heads": 8, "mamba_head_dim": 4, "n_groups": 4,
        "ssm_state_size": 16, "conv_kernel": 4, "use_conv_bias": true, "mamba_proj_bias": false,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
        "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5, "max_position_embeddings": 512})"));
    const TensorEntry& in = tensor_named(list, "backbone.layers.0.mixer.in_proj.weight");
    // z and x: 32 rows each in 8 heads; B and C: 64 rows each in 4 groups; dt: 8 rows
    EXPECT_EQ(rank_rows(in, 4, 1), (Rows{{8, 16}, {40, 48}, {80, 96}, {144, 160}, {194, 196}}));
    EXPECT_EQ(rank_rows(in, 8, 3), (Rows{{12, 16}, {44, 48}, {80, 96}, {144, 160}, {195, 196}}));
    EXPECT_EQ(rank_rows(tensor_named(list, "backbone.layers.0.mixer.conv1d.weight"), 4, 1),
              (Rows{{8, 16}, {48, 64}, {112, 128}}));
}

TEST(Shards, AnExpertIsWholeOnOneRank) {
    for (const auto& entry : std::filesystem::directory_iterator(family_root())) {
        if (entry.path().filename() != "qwen3_moe") continue;
        const auto list = sharded_tensors(family_config(entry.path()));
        for (const TensorEntry& tensor : list) {
            if (tensor.name.find(".experts.") == std::string::npos) continue;
            int owners = 0;
            for (int rank = 0; rank < 2; ++rank) {
                const Rows rows = rank_rows(tensor, 2, rank);
                if (rows.empty()) continue;
                ++owners;
                EXPECT_EQ(rows, (Rows{{0, tensor.shape.front()}})) << tensor.name;
            }
            EXPECT_EQ(owners, 1) << tensor.name;
        }
    }
}

}  // namespace
}  // namespace nibble::test
