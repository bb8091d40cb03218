#include "cli/usage.h"

#include "cli/command.h"
#include "cli/command_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace nibble {
namespace {

// Returns the message about a command line; empty: it can be parsed.
std::string complaint(const std::string& words) {
    CLI::App app{std::string(program_description), "nibble"};
    RunCommand run;
    add_commands(app, run);
    try {
        app.parse(words);
    } catch (const CLI::Success&) {
        return "help";
    } catch (const CLI::ParseError& error) {
        return usage_message(app, error);
    }
    return {};
}

TEST(Usage, SuggestsTheNearestCommandAndFlag) {
    EXPECT_EQ(complaint("quantise a b -o c"), "no command 'quantise'; did you mean 'quantize'? (see nibble help)");
    EXPECT_EQ(complaint("frobnicate"), "no command 'frobnicate' (see nibble help)");
    EXPECT_EQ(complaint("bench quantise"),
              "no command 'bench quantise'; did you mean 'quantize'? (see nibble help bench)");
    EXPECT_EQ(complaint("inspect model --sumary"),
              "nibble inspect: no flag '--sumary'; did you mean '--summary'? (see nibble help inspect)");
    EXPECT_EQ(complaint("inspect model another"),
              "nibble inspect: 'another' is one argument too many (see nibble help inspect)");
}

TEST(Usage, ReportsAMisspelledFlagInsteadOfTheMissingOne) {
    EXPECT_EQ(complaint("quantize a -o b --recipee nvfp4"),
              "nibble quantize: no flag '--recipee'; did you mean '--recipe'? (see nibble help quantize)");
}

TEST(Usage, InvalidFlagsAreErrorsBeforeTheJobBegins) {
    const std::string quantize = "quantize a -o b --recipe fp8 ";
    EXPECT_EQ(complaint(quantize), "");
    for (const char* wrong :
         {"--format x", "--device x", "--device cuda:x", "--kv fp3", "--arithmetic fast", "--embeddings fp3",
          "--compat 0.46", "--max-shard-size 5apples", "--kernels mmx", "--threads -3", "--calib-range mse",
          "--calib-tokens 5", "--calib-all-experts", "--calib x --calib-range middle", "--calib x --calib-tokens 0"}) {
        const std::string text = complaint(quantize + wrong);
        EXPECT_NE(text, "") << wrong;
        EXPECT_EQ(text.find('\n'), text.npos) << wrong;
        EXPECT_TRUE(text.ends_with(" (see nibble help quantize)")) << text;
    }
    EXPECT_NE(complaint("quantize a -o b --recipe nvfp5").find("did you mean 'nvfp4'?"), std::string::npos);
    EXPECT_NE(complaint("quantize a -o b.gguf --recipe fp8 --format modelopt"), "");
    EXPECT_EQ(complaint("quantize a -o b.gguf --recipe fp8"), "");
    EXPECT_NE(complaint("convert a -o b"), "") << "no format, and no name that says it";
    EXPECT_EQ(complaint("convert a -o b.gguf"), "");
    EXPECT_NE(complaint("search a -o b.yaml --calib c --score middle"), "");
    EXPECT_NE(complaint("search a -o b.yaml"), "");
    EXPECT_NE(complaint("eval a"), "");
}

// Flags of `vllm serve`: the same meaning, or one line with the next step.
TEST(Usage, FlagsOfVllm) {
    for (const char* accepted : {"--trust-remote-code",
                                 "--enable-prefix-caching",
                                 "--enable-chunked-prefill",
                                 "--enable-auto-tool-choice",
                                 "--tensor-parallel-size 1",
                                 "--tensor-parallel-size=4",
                                 "--tp 2",
                                 "--enable-expert-parallel",
                                 "--pipeline-parallel-size 1",
                                 "--dtype auto",
                                 "--dtype bfloat16",
                                 "--dtype float32",
                                 "--kv-cache-dtype auto",
                                 "--load-format auto",
                                 "--swap-space 0",
                                 "--kv-cache-memory-bytes 4GB",
                                 "--no-enable-prefix-caching",
                                 "--gpu-memory-utilization 0.9",
                                 "--max-num-seqs 8",
                                 "--max-model-len 512",
                                 "--served-model-name a",
                                 "--generation-config auto"})
        EXPECT_EQ(complaint("serve m " + std::string(accepted)), "") << accepted;
    const std::pair<const char*, const char*> refused[]{
        {"--tensor-parallel-size 0", "--tensor-parallel-size: Value 0 not in range"},
        {"--tensor-parallel-size 65", "not in range"},
        {"--data-parallel-size 8", "a server has one copy of the model"},
        {"--pipeline-parallel-size 2", "--pipeline-parallel-size 2: layers are not divided among ranks"},
        {"--pp 4", "--tensor-parallel-size"},
        {"--quantization fp8", "the checkpoint states its quantization"},
        {"--dtype half", "--compute"},
        {"--kv-cache-dtype fp8", "--kv"},
        {"--chat-template x.jinja", "chat_template.jinja"},
        {"--max-num-batched-tokens 8192", "--prompt-stretch"},
        {"--enforce-eager", "leave the flag out"},
        {"--disable-log-requests", "--quiet"},
        {"--enable-lora", "merge"},
        {"--model x", "the first argument"},
        {"--kv-cache-memory-bytes 0", "is not a size"},
        {"--gpu-memory-utilization 2", "not in range"},
        {"--port 99999", "--port: Value 99999 not in range"},
        {"--port -1", "--port"},
        {"--port x", "--port"},
        {"--tensor-paralel-size 2", "did you mean '--tensor-parallel-size'?"}};
    for (const auto& [flag, text] : refused) {
        const std::string said = complaint("serve m " + std::string(flag));
        EXPECT_NE(said.find(text), said.npos) << flag << ": " << said;
        EXPECT_EQ(said.find('\n'), said.npos) << flag;
    }
}

TEST(Usage, ParallelismThatDoesNotExistIsRefusedByName) {
    for (const char* command : {"generate m x", "eval m", "logits m --ids i -o o", "chat m"}) {
        const std::string said = complaint(fmt::format("{} --pipeline-parallel-size 2", command));
        EXPECT_NE(said.find("--pipeline-parallel-size 2: layers are not divided"), said.npos) << command << said;
    }
    for (const char* flag : {"--tensor-parallel-size 2", "--tp 2", "--pipeline-parallel-size 2"}) {
        const std::string said = complaint(fmt::format("rl config.yaml {}", flag));
        EXPECT_NE(said.find("take --ranks, which divides the prompts"), said.npos) << flag << said;
    }
    EXPECT_EQ(complaint("rl config.yaml --tensor-parallel-size 1"), "");
}

TEST(Usage, EveryCommandHasHelpAndQuietAndAnExample) {
    CLI::App app{std::string(program_description), "nibble"};
    RunCommand run;
    add_commands(app, run);
    std::set<std::string> names;
    for (const CommandEntry& command : command_tree(app)) {
        EXPECT_TRUE(names.insert(command.name).second) << command.name;
        EXPECT_FALSE(command.description.empty()) << command.name;
        if (!command.subcommands.empty()) continue;
        std::set<std::string> flags;
        for (const FlagEntry& flag : command.flags)
            for (const std::string& name : flag.names)
                EXPECT_TRUE(flags.insert(name).second) << command.name << " " << name;
        EXPECT_TRUE(flags.contains("--help") && flags.contains("--quiet")) << command.name;
        EXPECT_FALSE(flags.contains("--kernel")) << command.name << ": the flag is spelled --kernels";
        EXPECT_NE(command.footer.find("Example"), std::string::npos) << command.name;
    }
    EXPECT_TRUE(names.contains("quantize") && names.contains("bench model"));
    EXPECT_EQ(complaint("help quantize"), "");
    EXPECT_EQ(complaint("help bench model"), "");
    EXPECT_EQ(complaint("quantize --help"), "help");
    EXPECT_EQ(complaint("help quantise"), "no command 'quantise'; did you mean 'quantize'? (see nibble help help)");
}

}  // namespace
}  // namespace nibble
