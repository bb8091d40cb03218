#include "cli/options.h"

#include "cli/engine.h"

#include <gtest/gtest.h>

using namespace nibble;

TEST(ParseSize, ReadsDecimalAndBinaryUnits) {
    EXPECT_EQ(*parse_size("5GB"), 5'000'000'000);
    EXPECT_EQ(*parse_size("1.5mb"), 1'500'000);
    EXPECT_EQ(*parse_size("77"), 77);
    EXPECT_EQ(*parse_size("77B"), 77);
    EXPECT_EQ(*parse_size("2TB"), 2'000'000'000'000);
    EXPECT_EQ(*parse_size("64M"), 64 << 20);
    EXPECT_EQ(*parse_size("64MiB"), 64 << 20);
    EXPECT_EQ(*parse_size("0.5g"), 1 << 29);
    EXPECT_EQ(*parse_size("3K"), 3 << 10);
    for (const char* bad : {"", "GB", "-1", "0", "5 apples", "1e30TB", "nan", "5Gi", "5GiBs", "5E"})
        EXPECT_FALSE(parse_size(bad).ok()) << bad;
}

TEST(ParseNames, ErrorsListTheChoices) {
    EXPECT_EQ(*parse_dialect("compressed-tensors"), Dialect::compressed_tensors);
    EXPECT_NE(parse_dialect("onnx").error().message().find("compressed-tensors"), std::string::npos);
    EXPECT_EQ(*parse_format("bf16"), Format::none);
    EXPECT_NE(parse_format("fp3").error().message().find("nvfp4"), std::string::npos);
    EXPECT_EQ(*parse_arithmetic("true"), Arithmetic::true_division);
    EXPECT_FALSE(parse_arithmetic("fast").ok());
}

TEST(NameOf, IsTheLastPartOfThePathOrOfTheEnclosingFolder) {
    for (const char* path : {"a/model", "a/model/", "/a/b/../model", "model"})
        EXPECT_EQ(name_of(path), "model") << path;
    EXPECT_EQ(name_of("."), std::filesystem::current_path().filename());
    EXPECT_EQ(name_of("a/.."), std::filesystem::current_path().filename());
}

TEST(CommandLine, IsRebuiltFromTheParsedFlags) {
    CLI::App app;
    std::string source, out;
    bool flag = false, other = false;
    CLI::App* command = app.add_subcommand("quantize", "");
    command->add_option("source", source);
    command->add_option("-o,--output", out);
    command->add_flag("--strict", flag);
    command->add_flag("--quiet", other);
    app.parse("quantize src --strict -o out");
    EXPECT_EQ(command_line_of(*command), "nibble quantize src --output out --strict");
}
