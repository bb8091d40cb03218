// The one architectural rule: a folder includes only folders of a lower level, and folders of one level never include
// each other. CUDA headers appear only under */cuda.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

namespace fs = std::filesystem;

static const std::map<std::string, int> levels{{"base", 0},  {"formats", 1}, {"io", 1},      {"page", 1},
                                               {"text", 1},  {"tensor", 2},  {"kernels", 3}, {"checkpoint", 3},
                                               {"bench", 4}, {"model", 4},   {"quant", 5},   {"serve", 5},
                                               {"eval", 5},  {"train", 5},   {"rl", 6},      {"cli", 7}};

static bool may_include(const std::string& from, const std::string& to) {
    return from == to || levels.at(to) < levels.at(from);
}

TEST(IncludeDirection, TheRuleItselfTellsUpFromDown) {
    EXPECT_TRUE(may_include("quant", "base"));
    EXPECT_TRUE(may_include("io", "io"));
    EXPECT_FALSE(may_include("base", "formats"));
    EXPECT_FALSE(may_include("io", "formats"));
    EXPECT_FALSE(may_include("kernels", "checkpoint"));
}

TEST(IncludeDirection, FoldersIncludeOnlyLowerLevels) {
    const fs::path root = fs::path(NIBBLE_SOURCE_DIR) / "nibble";
    const std::regex include("^\\s*#\\s*include\\s*\"([^\"]+)\"");
    const std::regex cuda_header("^\\s*#\\s*include\\s*[<\"](cuda|cublas|cudnn|nccl|cusolver)");
    int files = 0, includes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        const std::string extension = entry.path().extension();
        if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
        const fs::path relative = fs::relative(entry.path(), root);
        const std::string folder = relative.begin()->string();
        if (relative.begin() == std::prev(relative.end())) continue;  // main.cpp
        ASSERT_TRUE(levels.contains(folder)) << relative << ": folder '" << folder << "' has no level in design.md";
        ++files;
        std::ifstream in(entry.path());
        std::string line;
        for (int number = 1; std::getline(in, line); ++number) {
            std::smatch match;
            if (std::regex_search(line, cuda_header)) {
                EXPECT_TRUE(relative.string().find("/cuda/") != std::string::npos)
                    << relative << ":" << number << ": CUDA header outside a cuda/ folder";
            }
            if (!std::regex_search(line, match, include)) continue;
            const fs::path target(match[1].str());
            ++includes;
            ASSERT_NE(target.begin(), std::prev(target.end()))
                << relative << ":" << number << ": include by folder, e.g. \"base/error.h\"";
            const std::string to = target.begin()->string();
            ASSERT_TRUE(levels.contains(to)) << relative << ":" << number << ": unknown folder '" << to << "'";
            EXPECT_TRUE(may_include(folder, to))
                << relative << ":" << number << ": " << folder << " (level " << levels.at(folder) << ") includes " << to
                << " (level " << levels.at(to) << ")";
        }
    }
    EXPECT_GT(files, 10);
    EXPECT_GT(includes, 10);
}
