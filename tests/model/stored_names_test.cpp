// Every family in the spellings of tensor names that published files, transformers' class of a whole model and
// transformers' class of a text part use, with tied and untied heads: nothing counts as missing, every tensor is missed
// under its own name, and the logits have the same bits.
#include "architecture/stored_names.h"

#include "model/family_folders.h"
#include "model/fewer_tensors.h"
#include "model/models.h"

#include <regex>

namespace nibble::test {
namespace {

struct Spelling {
    const char* name;
    std::vector<std::pair<const char*, const char*>> rules;  // regular expression and replacement, in this order
};

std::vector<Spelling> spellings() {
    const std::pair<const char*, const char*> w1{R"((experts\.\d+|mlp|block_sparse_moe|feed_forward)\.w1\.)",
                                                 "$1.gate_proj."};
    const std::pair<const char*, const char*> w2{R"((experts\.\d+|mlp|block_sparse_moe|feed_forward)\.w2\.)",
                                                 "$1.down_proj."};
    const std::pair<const char*, const char*> w3{R"((experts\.\d+|mlp|block_sparse_moe|feed_forward)\.w3\.)",
                                                 "$1.up_proj."};
    return {
        {"published", {}},
        // transformers' class: one name for dense and sparse layers.
        {"class",
         {{R"(\.block_sparse_moe\.e_score)", ".mlp.gate.e_score"},
          {R"(\.block_sparse_moe\.(?!router\.layer|input|output|experts\.\d+\.\D\w*_proj))", ".mlp."},
          w1,
          w2,
          w3}},
        // transformers renames the layers back when it saves, the dense ones too.
        {"saved", {{R"(\.mlp\.)", ".block_sparse_moe."}}},
        {"numbered",
         {{R"(((?:mlp|block_sparse_moe)\.experts\.\d+)\.gate_proj\.)", "$1.w1."},
          {R"(((?:mlp|block_sparse_moe)\.experts\.\d+)\.down_proj\.)", "$1.w2."},
          {R"(((?:mlp|block_sparse_moe)\.experts\.\d+)\.up_proj\.)", "$1.w3."}}},
        {"outer_root",
         {{R"(^model\.(?!language_model|visual|vision))", "language_model.model."},
          {R"(^lm_head\.)", "language_model.lm_head."}}},
        {"outer_root_own_head",
         {{R"(^model\.(?!language_model|visual|vision))", "language_model.model."},
          {R"(^language_model\.lm_head)", "lm_head"}}},
        {"inner_root", {{R"(^model\.(?!language_model|visual|vision))", "model.language_model."}}},
        {"router", {{R"(\.gate\.weight$)", ".router.weight"}}},
    };
}

// A checkpoint under other names. With `tied`, it has no head, and its config.json ties the head.
class Renamed : public Checkpoint {
public:
    Renamed(std::shared_ptr<const Checkpoint> of, const Spelling& spelling, bool tied) : of_(std::move(of)) {
        config_ = of_->config();
        if (tied) {
            config_["tie_word_embeddings"] = true;
            if (config_.contains("text_config")) config_["text_config"]["tie_word_embeddings"] = false;
        }
        for (size_t i = 0; i < of_->tensors().size(); ++i) {
            CheckpointTensor t = of_->tensors()[i];
            if (tied && t.name.ends_with("lm_head.weight")) continue;
            for (const auto& [pattern, replacement] : spelling.rules)
                t.name = std::regex_replace(t.name, std::regex(pattern), replacement);
            changed_ |= t.name != of_->tensors()[i].name;
            tensors_.push_back(std::move(t));
            index_.push_back(i);
        }
    }
    bool changed() const { return changed_; }
    const std::filesystem::path& path() const override { return of_->path(); }
    Dialect dialect() const override { return of_->dialect(); }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return of_->kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t i, int64_t begin, int64_t count, Matrix& m) const override {
        return of_->read_plain(index_[i], begin, count, m);
    }
    Result<QuantView> read_quant(size_t i, int64_t begin, int64_t count, QuantMatrix& m) const override {
        return of_->read_quant(index_[i], begin, count, m);
    }
    void done_with(size_t i, int64_t begin, int64_t count) const override { of_->done_with(index_[i], begin, count); }
    Result<std::vector<SideFile>> side_files() const override { return of_->side_files(); }

private:
    std::shared_ptr<const Checkpoint> of_;
    Json config_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<size_t> index_;
    bool changed_ = false;
};

std::vector<float> logits_of(const std::shared_ptr<const Checkpoint>& checkpoint, const std::string& place) {
    ThreadPool pool(2);
    ModelOptions options;
    options.compute = Compute::f32;
    const auto model = Model::load(checkpoint, options, pool);
    EXPECT_TRUE(model.ok()) << place << ": " << model.error().message();
    std::vector<int32_t> text;
    for (int i = 0; i < 24; ++i) text.push_back(i * 37 % 64);
    return model.ok() ? all_logits(*model, {text}) : std::vector<float>();
}

class TensorSpellings : public testing::TestWithParam<bool> {};

TEST_P(TensorSpellings, GiveTheSameModelInEveryFamily) {
    std::map<std::string, int> used;
    for (const auto& root : {family_root(), test_data("golden/models")})
        for (const auto& folder : std::filesystem::directory_iterator(root)) {
            const auto source = open_checkpoint(folder.path());
            ASSERT_TRUE(source);
            const std::string family = folder.path().filename().string();
            // Their heads cannot be tied: one class refuses it, the other's head has a bias.
            if (GetParam() && (family == "deepseek_v4" || family == "phimoe")) continue;
            std::vector<float> want;
            for (const Spelling& spelling : spellings()) {
                const auto renamed = std::make_shared<Renamed>(source, spelling, GetParam());
                if (!spelling.rules.empty() && !renamed->changed()) continue;
                ++used[spelling.name];
                const std::string place = family + " " + spelling.name;
                expect_weights_are_missed(*renamed, place, true);
                const std::vector<float> got = logits_of(renamed, place);
                if (want.empty()) want = got;
                EXPECT_FALSE(got.empty()) << place;
                EXPECT_EQ(got, want) << place;
            }
        }
    for (const Spelling& spelling : spellings()) EXPECT_GT(used[spelling.name], 0) << spelling.name;
}

INSTANTIATE_TEST_SUITE_P(Heads, TensorSpellings, testing::Bool(),
                         [](const auto& tied) { return tied.param ? "Tied" : "Untied"; });

// The outer configuration determines whether the head is tied, as in transformers 5; without it, the text part does.
TEST(TensorSpelling, TheWholeModelTiesTheHead) {
    const auto text = open_checkpoint(family_root() / "ministral3")->config();
    struct Case {
        Json outer, inner;
        bool tied;
    };
    const Json none;
    for (const Case& c : {Case{true, false, true}, Case{false, true, false}, Case{true, none, true},
                          Case{none, true, true}, Case{none, false, false}, Case{none, none, false}}) {
        Json config{{"model_type", "mistral3"}, {"text_config", text}, {"vision_config", Json::object()}};
        config["text_config"].erase("tie_word_embeddings");
        if (!c.outer.is_null()) config["tie_word_embeddings"] = c.outer;
        if (!c.inner.is_null()) config["text_config"]["tie_word_embeddings"] = c.inner;
        const auto model = model_config(config);
        ASSERT_TRUE(model.ok()) << model.error().message();
        EXPECT_EQ(model->head == model->embedding, c.tied) << config["tie_word_embeddings"] << c.inner;
    }
}

}  // namespace
}  // namespace nibble::test
