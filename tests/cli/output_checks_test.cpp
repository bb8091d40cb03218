// Every job checks its outputs before it works: one line names the place, and nothing is changed.
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

class OutputChecks : public testing::Test {
protected:
    void SetUp() override {
        model = test_data("chat").string();
        write_file(dir / "text.txt", "hello the world");
        write_file(dir / "precious", "precious");
        write_file(dir / "rows.jsonl", "{\"input\": \"a\", \"output\": \"b\"}\n");
        write_file(dir / "train.yaml", fmt::format("model: {}\nsteps: 1\ndata: {{text: text.txt}}\n", model));
        write_file(dir / "rl.yaml", fmt::format("policy: {{model_name: {}, max_total_sequence_length: 64}}\n"
                                                "data: {{train: rows.jsonl}}\n",
                                                model));
        fs::create_directories(dir / "folder/inside");
    }
    std::pair<int, std::string> run(const std::string& arguments) {
        const int code = std::system(
            fmt::format("cd '{}' && '{}' {} < /dev/null > out.txt 2>&1", dir.path().string(), NIBBLE_PROGRAM, arguments)
                .c_str());
        return {code, read_file(dir / "out.txt")};
    }
    TempDir dir;
    std::string model;
};

TEST_F(OutputChecks, AnUnwritablePathIsNamedInOneLine) {
    // {0}: the model, {1}: the output.
    for (const char* command :
         {"quantize {0} -o {1} --recipe w4a16_nvfp4", "quantize {0} -o {1} --recipe nvfp4 --calib text.txt",
          "convert {0} -o {1} --format bf16", "data build text.txt --tokenizer {0} -o {1}", "train train.yaml -o {1}",
          "rl rl.yaml -o {1}", "eval {0} --text text.txt -o {1}",
          "eval {0} --against {0} --text text.txt --reference-cache {1}", "search {0} --calib text.txt -o {1}.yaml",
          "logits {0} --ids none.safetensors -o {1}"}) {
        for (const char* output : {"precious/x", "/proc/nibble-x"}) {
            const auto [code, said] = run(fmt::format(fmt::runtime(command), model, output));
            EXPECT_NE(code, 0) << command;
            EXPECT_TRUE(said.starts_with("nibble: ")) << said;
            EXPECT_NE(said.find(output), std::string::npos) << command << ": " << said;
            EXPECT_EQ(std::ranges::count(said, '\n'), 1) << command << ": " << said;
        }
        EXPECT_EQ(read_file(dir / "precious"), "precious") << command;
    }
}

// A folder with contents, or a file of that name, is not overwritten.
TEST_F(OutputChecks, ExistingOutputsAreKept) {
    for (const char* command :
         {"quantize {0} -o {1} --recipe w4a16_nvfp4", "convert {0} -o {1} --format bf16",
          "data build text.txt --tokenizer {0} -o {1}", "logits {0} --ids none.safetensors -o {1}"})
        for (const char* output : {"folder", "precious"}) {
            const auto [code, said] = run(fmt::format(fmt::runtime(command), model, output));
            EXPECT_NE(code, 0) << command;
            EXPECT_NE(said.find("exists already; remove it or choose another output"), std::string::npos) << said;
        }
    EXPECT_EQ(read_file(dir / "precious"), "precious");
    EXPECT_TRUE(fs::exists(dir / "folder/inside"));
}

// The message contains the next step.
TEST_F(OutputChecks, MissingModelsNameTheNextStep) {
    fs::create_directories(dir / "pickles");
    write_file(dir / "pickles/config.json", read_file(fs::path(model) / "config.json"));
    write_file(dir / "pickles/model.ckpt", "PK");
    write_file(dir / "pickles/tokenizer.json", read_file(fs::path(model) / "tokenizer.json"));
    for (const char* command :
         {"quantize {} -o out --recipe w4a16_nvfp4", "inspect {}", "verify {}", "generate {} hello",
          "eval {} --text text.txt", "convert {} -o out --format bf16", "tokenize {} hello"}) {
        const auto [code, said] = run(fmt::format(fmt::runtime(command), "Qwen/Qwen3-8B"));
        EXPECT_NE(code, 0) << command;
        EXPECT_NE(said.find("hf download Qwen/Qwen3-8B --local-dir Qwen3-8B"), std::string::npos) << command << said;
        EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
        if (std::string_view(command).starts_with("tokenize")) continue;
        const auto [also, pickles] = run(fmt::format(fmt::runtime(command), "pickles"));
        EXPECT_NE(also, 0) << command;
        EXPECT_NE(pickles.find("model.ckpt (PyTorch's pickles)"), std::string::npos) << command << pickles;
        EXPECT_NE(pickles.find("save_pretrained('pickles-safetensors')"), std::string::npos) << pickles;
    }
    fs::create_directories(dir / "pointers");
    write_file(dir / "pointers/config.json", read_file(fs::path(model) / "config.json"));
    write_file(dir / "pointers/model.safetensors",
               "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    EXPECT_EQ(run("inspect pointers").second,
              "nibble: pointers/model.safetensors: is a Git LFS pointer, not the file itself; fetch the file with `git "
              "lfs pull`\n");
    EXPECT_EQ(run("inspect folder/none").second, "nibble: folder/none: no such file or folder\n");
    EXPECT_EQ(run("inspect ./Qwen/Qwen3-8B").second, "nibble: ./Qwen/Qwen3-8B: no such file or folder\n");
    const auto [code, said] = run(fmt::format("serve {} --max-model-len 1000000 --port 0", model));
    EXPECT_NE(code, 0);
    EXPECT_NE(said.find("--max-model-len 1000000: the model is made for 1024 tokens"), std::string::npos) << said;
}

}  // namespace
}  // namespace nibble::test
