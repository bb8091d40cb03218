// Checks the rules of docs/architecture.md, section 2, for nibble/, and for a tree with every kind of violation
// (tests/data/source_rules), so that a rule that finds nothing is noticed.
#include "base/source_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

const fs::path source = fs::path(NIBBLE_SOURCE_DIR) / "nibble";
const fs::path planted = fs::path(NIBBLE_SOURCE_DIR) / "tests/data/source_rules";

std::string lines_of(std::vector<std::string> list) {
    std::ranges::sort(list);
    std::string lines;
    for (const std::string& line : list) lines += line + "\n";
    return lines;
}

TEST(IncludeDirection, FoldersIncludeOnlyLowerLevels) {
    const RuleReport report = check_includes(source);
    EXPECT_EQ(lines_of(report.violations), "");
    EXPECT_GT(report.files, 300);
    EXPECT_GT(report.seen, 1000);
}

TEST(IncludeDirection, EveryPlantedViolationIsFound) {
    EXPECT_EQ(
        lines_of(check_includes(planted).violations),
        lines_of({"base/upward.h:2: base (level 0) includes formats (level 1)",
                  "io/sibling.cpp:1: io (level 1) includes text (level 1)",
                  "io/without_folder.cpp:1: include by folder, e.g. \"base/error.h\"",
                  "kernels/cpu/loops.inc:1: kernels (level 3) includes model (level 4)",
                  "kernels/cpu/takes_cuda.cpp:2: kernels/cpu includes kernels/cuda",
                  "kernels/cuda/attention/takes_fp8.cu:3: kernels/cuda/attention includes kernels/cuda/matmul",
                  "kernels/cuda/ssm/takes_cpu.cuh:1: kernels/cuda includes kernels/cpu",
                  "kernels/cuda/ssm/takes_ref.cu:1: kernels/cuda includes kernels/ref",
                  "kernels/header.h:1: kernels includes kernels/ref",
                  "kernels/ref/takes_cpu.cpp:1: kernels/ref includes kernels/cpu",
                  "model/cuda_header.cpp:1: CUDA header outside a cuda/ folder",
                  "model/cuda_header.cpp:2: a header of a cuda/ folder outside of one",
                  "model/takes_device.cpp:1: a header of GPU kernels outside of GPU code",
                  "model/takes_device.cpp:2: a header of a device/ folder outside of GPU code",
                  "model/takes_inside.cpp:1: model includes kernels/cpu; callers include headers of kernels/ itself",
                  "nameless/file.cpp:1: folder 'nameless' has no level",
                  "quant/angle.cpp:2: project header in angle brackets",
                  "quant/angle.cpp:3: project header in angle brackets",
                  "quant/angle.cpp:3: quant (level 5) includes engine (level 5)",
                  "quant/unknown.cpp:1: unknown folder 'elsewhere'"}));
}

TEST(UnityNames, FilesOfALibraryShareNoHiddenName) {
    const RuleReport report = check_anonymous_names(source);
    EXPECT_EQ(lines_of(report.violations), "");
    EXPECT_GT(report.files, 200);
    EXPECT_GT(report.seen, 1000);
}

TEST(UnityNames, EveryPlantedClashIsFound) {
    EXPECT_EQ(lines_of(check_anonymous_names(planted).violations),
              lines_of({"quant/names_b.cpp:10: 'gib' is also in quant/names_a.cpp",
                        "quant/names_b.cpp:11: 'most' is also in quant/deeper/names_c.cpp",
                        "quant/names_b.cpp:12: 'Row' is also in quant/names_a.cpp",
                        "quant/names_b.cpp:13: 'Count' is also in quant/names_a.cpp",
                        "quant/names_b.cpp:14: 'table' is also in quant/names_a.cpp",
                        "quant/names_b.cpp:15: 'wide' is also in quant/names_a.cpp",
                        "quant/names_b.cpp:19: 'hidden' is also in quant/names_a.cpp",
                        "quant/names_a.cpp:9: 'most' is also in quant/deeper/names_c.cpp"}));
}

TEST(TypeNames, EveryTypeIsDefinedOnce) {
    const RuleReport report = check_type_names(source);
    EXPECT_EQ(lines_of(report.violations), "");
    EXPECT_GT(report.files, 1000);
    EXPECT_GT(report.seen, 1000);
}

TEST(TypeNames, EveryPlantedClashIsFound) {
    EXPECT_EQ(lines_of(check_type_names(planted).violations),
              lines_of({"quant/two_types.cpp:3: 'nibble::Twice' is also defined in kernels/one_type.h",
                        "quant/two_types.cpp:11: 'nibble::cuda::Tile' is also defined in kernels/one_type.h"}));
}

TEST(KernelNames, AreUnique) {
    const RuleReport report = check_kernel_names(source);
    EXPECT_EQ(lines_of(report.violations), "");
    EXPECT_GT(report.seen, 100);
}

TEST(KernelNames, EveryPlantedClashIsFound) {
    EXPECT_EQ(lines_of(check_kernel_names(planted).violations),
              lines_of({"kernels/cuda/ssm/scan.cu: 'scan_kernel' is also in kernels/cuda/attention/scan.cu"}));
}

// Installed headers include only installed headers.
TEST(IncludeDirection, PublicHeadersIncludePublicHeadersOnly) {
    const std::regex include("#include \"([^\"]+)\"");
    const fs::path base = source / "base";
    std::set<std::string> seen;
    for (const auto& entry : fs::directory_iterator(source.parent_path() / "include/nibble")) {
        const std::string name = entry.path().filename();
        // Two headers are installed from base/ under their public names.
        const fs::path file = name == "error.h" ? base / "error.h" : name == "hooks.h" ? base / "progress.h" : entry;
        std::ifstream in(file);
        for (std::string line; std::getline(in, line);)
            if (std::smatch match; std::regex_search(line, match, include)) {
                EXPECT_TRUE(fs::exists(source.parent_path() / "include" / match[1].str())) << name << ": " << line;
            }
        seen.insert(name);
    }
    EXPECT_TRUE(seen.contains("quantize.h"));
}

TEST(UnityNames, CodeIsReadWithoutCommentsAndLiterals) {
    EXPECT_EQ(bare_code("int a; // int b;\n/* x\ny */int c = 1'000; char d = '\\''; auto e = \"{ // \";"),
              "int a; \n\nint c = 1'000; char d = 0; auto e = \"\";");
    EXPECT_EQ(bare_code("#define X {\\\n  }\nf(R\"x(\")\" )x\");"), "\n\nf(\"\");");
}

}  // namespace
}  // namespace nibble::test
