// Layers for multi-token prediction in all commands: every dialect keeps them unchanged, answers with their drafts
// equal those without, and GGUF reports that it cannot store them.
#include "cli/cli.h"
#include "io/safetensors_writer.h"
#include "model/made_up_model.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct Ran {
    int status = 0;
    std::string out, errors;
};

Ran run_command(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), "nibble");
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = cli_main(static_cast<int>(arguments.size()), argv.data());
    const std::string out = ::testing::internal::GetCapturedStdout();
    return {status, out, ::testing::internal::GetCapturedStderr()};
}

std::vector<std::byte> values_of(const Checkpoint& checkpoint, size_t i) {
    const CheckpointTensor& t = checkpoint.tensors()[i];
    Matrix scratch;
    const auto view = checkpoint.read_plain(i, 0, t.rows(), scratch);
    if (!view.ok()) return {};
    return {view->data, view->data + view->bytes()};
}

void write_model(const fs::path& folder, const Json& config) {
    fs::create_directories(folder);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        fs::copy_file(test_data("chat") / name, folder / name);
    write_file(folder / "config.json", config.dump(1));
    const auto checkpoint = agreeing_model(config, 0.3f);
    std::vector<TensorSpec> specs;
    for (const CheckpointTensor& t : checkpoint->tensors()) specs.push_back({t.name, DType::bf16, t.shape});
    auto layout = SafetensorsLayout::make(specs);
    ASSERT_TRUE(layout.ok());
    auto writer = SafetensorsFileWriter::create(folder / "model.safetensors", *std::move(layout));
    ASSERT_TRUE(writer.ok());
    for (size_t i = 0; i < specs.size(); ++i) ASSERT_TRUE(writer->write(i, 0, values_of(*checkpoint, i)).ok());
    ASSERT_TRUE(writer->finish().ok());
}

// Returns both families with sizes that every format and dialect supports, and the vocabulary of the test's tokenizer.
Json exported_config(bool nemotron) {
    Json config = nemotron ? predicting_nemotron() : predicting_deepseek();
    if (nemotron) config["hybrid_override_pattern"] = "M*EM";
    config["architectures"] = {nemotron ? "NemotronHForCausalLM" : "DeepseekV3ForCausalLM"};
    config["torch_dtype"] = "bfloat16";
    config["vocab_size"] = 272;
    config["bos_token_id"] = 269, config["eos_token_id"] = 271;
    return config;
}

class PredictionLayersInFiles : public ::testing::TestWithParam<bool> {
protected:
    void SetUp() override { write_model(dir_ / "source", exported_config(GetParam())); }

    // Checks that `out` has the source's tensors of the prediction layers; returns their number.
    int64_t expect_kept(const fs::path& out) {
        const auto from = Checkpoint::open(dir_ / "source"), to = Checkpoint::open(out);
        EXPECT_TRUE(from.ok() && to.ok());
        if (!from.ok() || !to.ok()) return 0;
        const std::string prefix = GetParam() ? "mtp." : "model.layers.2.";
        int64_t kept = 0, quantized = 0;
        for (size_t i = 0; i < (*to)->tensors().size(); ++i) {
            const CheckpointTensor& t = (*to)->tensors()[i];
            quantized += t.quantized();
            if (!t.name.starts_with(prefix)) continue;
            EXPECT_FALSE(t.quantized()) << t.name;
            EXPECT_EQ(t.dtype, DType::bf16) << t.name;
            size_t k = 0;
            while ((*from)->tensors()[k].name != t.name) ++k;
            EXPECT_EQ(values_of(**to, i), values_of(**from, k)) << t.name;
            ++kept;
        }
        EXPECT_GT(quantized, 10);
        for (const char* key : {"num_nextn_predict_layers", "mtp_hybrid_override_pattern"})
            EXPECT_EQ((*to)->config().value(key, Json()), (*from)->config().value(key, Json())) << key;
        return kept;
    }
    Json answer(const fs::path& model, const std::string& speculate) {
        const Ran ran = run_command({"generate", model, "four bits", "--max-tokens", "40", "--temperature", "0.6",
                                     "--seed", "3", "--json", "--threads", "2", "--speculate", speculate});
        EXPECT_EQ(ran.status, 0) << ran.errors;
        Json json = Json::parse(ran.out, nullptr, false);
        if (!json.is_object()) return json;
        json.erase("timing");
        return json;
    }
    TempDir dir_;
};

TEST_P(PredictionLayersInFiles, StayAsTheyWereInEveryDialect) {
    for (const char* dialect : {"modelopt", "compressed-tensors"}) {
        SCOPED_TRACE(dialect);
        const fs::path out = dir_ / dialect;
        const Ran made = run_command({"quantize", dir_ / "source", "-o", out, "--recipe", "nvfp4", "--weights-only",
                                      "--format", dialect, "--quiet", "--threads", "2"});
        ASSERT_EQ(made.status, 0) << made.errors;
        const int64_t kept = expect_kept(out);
        EXPECT_GT(kept, 20);
        const Ran sound = run_command({"verify", out, "--against", dir_ / "source", "--quiet", "--threads", "2"});
        EXPECT_EQ(sound.status, 0) << sound.errors;
        const Json without = answer(out, "none");
        EXPECT_EQ(answer(out, "mtp:3"), without);
        EXPECT_EQ(answer(out, "lookup"), without);
        const std::string other = std::string(dialect) == "modelopt" ? "compressed-tensors" : "modelopt";
        const Ran converted = run_command(
            {"convert", out, "-o", dir_ / ("by-way-of-" + other), "--format", other, "--quiet", "--threads", "2"});
        ASSERT_EQ(converted.status, 0) << converted.errors;
        EXPECT_EQ(expect_kept(dir_ / ("by-way-of-" + other)), kept);
    }
}

TEST_P(PredictionLayersInFiles, AreOmittedOnRequest) {
    const Ran plain = run_command(
        {"convert", dir_ / "source", "-o", dir_ / "plain", "--format", "bf16", "--drop", "mtp", "--threads", "2"});
    ASSERT_EQ(plain.status, 0) << plain.errors;
    EXPECT_NE(plain.out.find("tensors of layers for multi-token prediction"), std::string::npos) << plain.out;
    EXPECT_EQ(answer(dir_ / "plain", "none"), answer(dir_ / "source", "none"));
    const Ran none = run_command({"generate", dir_ / "plain", "four", "--speculate", "mtp"});
    EXPECT_NE(none.status, 0);
    EXPECT_NE(none.errors.find("declares no layers for multi-token prediction"), std::string::npos) << none.errors;
    if (!GetParam()) return;  // there is no GGUF writer for deepseek_v3
    const Ran refused = run_command({"convert", dir_ / "source", "-o", dir_ / "x.gguf", "--threads", "2"});
    EXPECT_NE(refused.status, 0);
    EXPECT_NE(refused.errors.find("remove them with `nibble convert --drop mtp`"), std::string::npos) << refused.errors;
    const Ran made =
        run_command({"convert", dir_ / "source", "-o", dir_ / "x.gguf", "--drop", "mtp", "--threads", "2"});
    // The layers no longer cause an error, but the tokenizer of these tests has no name in llama.cpp.
    EXPECT_NE(made.errors.find("pre-tokenizer"), std::string::npos) << made.errors;
}

INSTANTIATE_TEST_SUITE_P(Families, PredictionLayersInFiles, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "nemotron_h" : "deepseek_v3"; });

TEST(SpeculateFlag, IsNoneLookupOrMtp) {
    for (const char* wrong : {"lookup:0", "lookup:16", "mtp:", "mtp:x", "none:3", "eagle", "3"}) {
        const Ran ran = run_command({"generate", "nowhere", "x", "--speculate", wrong});
        EXPECT_EQ(ran.status, 2) << wrong << ran.errors;
        EXPECT_NE(ran.errors.find("--speculate"), std::string::npos) << ran.errors;
    }
}

}  // namespace
}  // namespace nibble::test
